"""Runs a server and a client with each pairing of libraries, and compares how they end with the own library at both ends."""

import collections
import re

from .session import Case, result

# name; server and client: command lines, with @A the server's address, @P a port, @D the device of that end, and {kit};
# ready: when clients can start (agent.py); devices: kinds on which it runs; needs: programs that must be there, by
# default the first words; figure: (name, pattern) whose group is a number of the client's output;
# evidence: whether both ends load librdmacm; check: a pattern that the client's output must have.
# persistent: the server serves until it is terminated.
# race: a pattern of what an end prints when it fails by a race of its own, whatever the library.
FIELDS = "name server client ready devices needs env figure evidence check persistent limit race"
Pair = collections.namedtuple("Pair", FIELDS)
ALL = ("rxe", "siw", "ib")
CRASHES = (132, 134, 135, 136, 139)
# Part of the file name of this project's library; the reference's is librdmacm.so.1.3.VERSION.
OURS = "/librdmacm.so.1.5."
CONTROL = ("own", "own")
PAIRINGS = [("ours", "ours"), ("own", "ours"), ("ours", "own")]
# Limits only end what hangs; machines may be slow.
READY_SECONDS = 60
# A server whose client failed is given this time to notice.
FAILED_SECONDS = 10
TRIES = 3


def pair(name, server, client, ready="cm", devices=ALL, needs=None, env=None, figure=None, evidence=True, check="",
         persistent=False, limit=120, race=""):
    server, client = server.split(), client.split()
    needs = needs or sorted({words[0] for words in (server, client) if "/" not in words[0]})
    return Pair(name, server, client, ready, devices, needs, env or {}, figure, evidence, check, persistent, limit, race)


class Outcome:
    """Of one pairing. trouble: why the server was not ready."""

    def __init__(self, server, client, trouble):
        self.server, self.client, self.trouble = server, client, trouble

    def statuses(self):
        return f"server {self.server.status}, client {self.client.status}"

    def works(self, check):
        text = self.client.out + self.client.err
        return not self.trouble and self.client.status == 0 and self.server.status in (0, "terminated") and \
            (not check or re.search(check, text) is not None)

    def has_race(self, race):
        text = "".join(end.out + end.err for end in (self.client, self.server))
        return bool(race) and re.search(race, text) is not None

    def last_lines(self):
        lines = ["server: " + line for line in (self.server.out + self.server.err).splitlines()[-4:]]
        lines += ["client: " + line for line in (self.client.out + self.client.err).splitlines()[-4:]]
        return ([self.trouble] if self.trouble else []) + lines


class Pairs:
    """server, client: hosts, with their description (facts.describe)."""

    def __init__(self, server, client, server_facts, client_facts, libraries=None):
        self.server, self.client = server, client
        self.address = server_facts["address"]
        self.devices = server_facts["device"]["device"], client_facts["device"]["device"]
        self.kind = client_facts["device"]["kind"]
        self.own_is_ours = any(OURS in "/" + facts["host"]["own_librdmacm"] for facts in (server_facts, client_facts))
        self.port = 17000
        # The folders, or the words of agent.py, that own and ours stand for.
        self.folders = libraries or {"own": "own", "ours": "ours"}

    def words(self, words, device, port):
        return [word.replace("@A", self.address).replace("@P", str(port)).replace("@D", device) for word in words]

    def once(self, case, libraries):
        self.port += 1
        port, env = self.port, {key: value.replace("@D", self.devices[0]) for key, value in case.env.items()}
        server = self.server.start(self.words(case.server, self.devices[0], port), self.folders[libraries[0]], env)
        ready = self.server.ask("ready", name=server, kind=case.ready.replace("@P", str(port)), limit=READY_SECONDS)
        env = {key: value.replace("@D", self.devices[1]) for key, value in case.env.items()}
        client = self.client.run(self.words(case.client, self.devices[1], port), self.folders[libraries[1]], env, case.limit)
        if case.persistent:
            ended = self.end_server(server)
        else:
            ended = self.server.wait(server, case.limit if client.status == 0 else FAILED_SECONDS)
        return Outcome(ended, client, "" if ready["ready"] else f"the server: {ready['why']}")

    def end_server(self, server):
        self.server.ask("terminate", name=server)
        ended = self.server.wait(server, FAILED_SECONDS)
        return ended if ended.status in CRASHES else ended._replace(status="terminated")

    def attempt(self, case, libraries):
        """Returns the first outcome that works of at most TRIES, and the failed ones before it. Some programs fail now and
        then with any library (ib_send_lat -R, once in ten), and so does soft-iWARP."""
        failed = []
        while True:
            outcome = self.once(case, libraries)
            hung = outcome.client.status == "hung" and not outcome.has_race(case.race)
            if outcome.works(case.check) or hung or len(failed) == TRIES - 1:
                return outcome, failed
            failed.append(outcome)

    def unfit(self, case):
        """Why the case cannot run here, or an empty string."""
        if self.kind not in case.devices:
            return f"not on {self.kind}"
        for host in {self.server, self.client}:
            missing = set(case.needs) - set(host.ask("has", names=list(case.needs))["programs"])
            if missing:
                return f"{host.name} has no {', '.join(sorted(missing))}"
        return ""

    def compare(self, case):
        why = self.unfit(case)
        if why:
            return result("cannot", why)
        control, failed = self.attempt(case, CONTROL)
        # A program that cannot work here is not tried again and again.
        again = control.works(case.check)
        outcomes, earlier = {}, {CONTROL: failed}
        for libraries in PAIRINGS if again else PAIRINGS[:1]:
            outcomes[libraries], earlier[libraries] = self.attempt(case, libraries) if again else (self.once(case, libraries), [])
        figures = self.figures(case, {CONTROL: control, **outcomes})
        if not again:
            alike = all(o.statuses() == control.statuses() for o in outcomes.values())
            facts = f"fails with the own library, too: {control.statuses()}" + ("; ours alike" if alike else "")
            return result("cannot", facts, control.last_lines(), figures)
        bad = {libraries: outcome for libraries, outcome in outcomes.items() if not outcome.works(case.check)}
        if bad:
            detail = self.detail(bad.items())
            if all(outcome.has_race(case.race) for outcome in bad.values()):
                return result("cannot", f"a race of the program itself in {TRIES} tries", detail, figures)
            return result("fails", "works with the own library, not with ours", detail, figures)
        trouble = self.evidence(case, control, outcomes)
        if trouble:
            return result("differs", "not shown to use the library that it was given", trouble, figures)
        tried = "".join(f", {'/'.join(libraries)} at try {len(failed) + 1}" for libraries, failed in earlier.items() if failed)
        detail = self.detail((libraries, outcome) for libraries, failed in earlier.items() for outcome in failed)
        return result("same", f"all four pairings{tried}{self.shown(figures)}", detail, figures)

    @staticmethod
    def detail(outcomes):
        """outcomes: pairs of libraries and an outcome."""
        return [f"{'/'.join(libraries)} (server/client): {line}" for libraries, outcome in outcomes
                for line in [outcome.statuses(), *outcome.last_lines()]]

    def evidence(self, case, control, outcomes):
        """Each end must have had the kernel's RDMA CM open and the expected librdmacm mapped."""
        if not case.evidence:
            return []
        trouble = []
        for libraries, outcome in {CONTROL: control, **outcomes}.items():
            ends = [("server", libraries[0], outcome.server), ("client", libraries[1], outcome.client)]
            for end, library, ended in ends:
                # Short clients can end before they were looked at.
                if not ended.libraries and end == "client":
                    continue
                right = all(self.is_library(library, path) for path in ended.libraries)
                if not right or not ended.libraries:
                    trouble.append(f"{'/'.join(libraries)}: the {end} has mapped {ended.libraries or 'no librdmacm'}")
            if not (outcome.server.used_node or outcome.client.used_node):
                trouble.append(f"{'/'.join(libraries)}: no end was seen to open the RDMA CM's device")
        return trouble

    def is_library(self, library, path):
        """The machine's own library may be this project's, installed."""
        return (OURS in path) == (library == "ours") or self.own_is_ours

    def figures(self, case, outcomes):
        if not case.figure:
            return {}
        name, pattern = case.figure
        found = {}
        for libraries, outcome in outcomes.items():
            matches = re.findall(pattern, outcome.client.out, re.M)
            # perftest measures 0 where the kernel does not say how fast the processor is.
            if matches and float(matches[-1]) > 0:
                found["/".join(libraries)] = float(matches[-1])
        return {f"{case.name}, {name}": found} if found else {}

    @staticmethod
    def shown(figures):
        return "".join(f"; {name}: " + ", ".join(f"{column} {value:g}" for column, value in row.items())
                       for name, row in figures.items())

    def cases(self, group, table):
        return [Case(group, case.name, lambda case=case: self.compare(case)) for case in table]
