"""The conformance programs on the own library and on ours, and those that check ours alone."""

import re

from harness.conformance import is_ours, judge_cases, judge_pair, read_differences, read_programs, unlisted_lines

from .hosts import KIT
from .session import Case, result

PROGRAMS = KIT / "programs"
LIMIT = 120
# Programs that change the machine, or need what only the lab has: files below /etc/rdma, mounts, other users,
# neighbours of the lab's interfaces, ibacm, a subnet administrator.
LEFT_OUT = {
    "cm/compared/restricted": "mounts, as root", "cm/compared/acm": "takes the place of ibacm",
    "cm/compared/services": "takes the place of a subnet administrator", "cm/compared/addrinfo": "makes a network namespace",
    "cm/ours/late_node": "mounts, as root", "cm/ours/bad_acm_service": "takes the place of ibacm",
    "rsocket/ours/setuid": "changes its user, as root", "rsocket/ours/datagram_udp_full": "changes neighbours",
    "rsocket/ours/polling_time": "writes below /etc/rdma", "rsocket/ours/interrupted_calls": "writes below /etc/rdma",
    "rsocket/ours/closed_fds": "takes the place of ibacm", "rsocket/ours/concurrent_waiters": "has a real-time priority, as root",
    "rsocket/ours/buffer_growth": "writes below /etc/rdma", "rsocket/ours/locked_memory": "drops capabilities, as root",
}
SHORT = ["cm/compared/ids", "cm/compared/connect", "rsocket/compared/basic", "cm/ours/bad_arguments"]


class Conformance:
    """host: where the programs run, both ends in one process. facts: its description."""

    def __init__(self, host, facts, where=""):
        self.host, self.where, self.kind = host, where, facts["device"]["kind"]
        prefix = {"rxe": "RXE", "siw": "SIW", "ib": "IB"}[self.kind]
        self.env = {f"{prefix}_DEV": facts["device"]["device"], f"{prefix}_ADDR": facts["address"],
                    f"{prefix}_ADDR6": facts["address6"], f"{prefix}_GID": facts["gid"]}
        self.kernel = ".".join(facts["host"]["kernel"].split(".")[:2])
        self.reference = reference_of(facts["host"]["own_librdmacm"])

    def run(self, program, library):
        ended = self.host.run([f"{{kit}}/programs/{program}", self.kind], library, self.env, LIMIT)
        return ended.out.splitlines(), 137 if ended.status == "hung" else ended.status, ended.err

    def compared(self, program):
        """A program whose output differs is run again: what differs between two runs of the own library is not counted."""
        entries = [entry for entry in read_differences(PROGRAMS, program)
                   if entry.applies(self.kind, self.reference, self.kernel)]
        first, second = self.run(program, "own"), self.run(program, "ours")
        verdict = judge_pair(first, second, entries)
        if verdict.state == "ok":
            return result("same", verdict.facts)
        if verdict.state == "skip":
            return result("cannot", verdict.facts)
        again, second = self.run(program, "own"), self.run(program, "ours")
        if judge_pair(again, second, entries).state == "ok":
            return result("same", "at the second try", verdict.detail)
        if verdict.facts.startswith("listed"):
            return result("same", f"{len(first[0])} lines; {verdict.facts}")
        if verdict.facts.startswith("the reference"):
            return result("cannot", verdict.facts.replace("the reference", "the own library:"), verdict.detail)
        unstable = set(unlisted_lines(first[0], again[0], []))
        detail = [line for line in verdict.detail if line not in unstable]
        if not detail:
            return result("cannot", "differs between two runs of the own library, too", verdict.detail)
        return result("differs", verdict.facts, detail)

    def ours(self, program):
        verdict = judge_cases(self.run(program, "ours"))
        state = {"ok": "same", "skip": "cannot", "FAIL": "fails"}[verdict.state]
        return result(state, verdict.facts, verdict.detail)

    def cases(self, short=False):
        found = []
        for program, devices in read_programs(PROGRAMS).items():
            if self.kind not in devices or program in LEFT_OUT or short and program not in SHORT:
                continue
            run = self.ours if is_ours(program) else self.compared
            group = ("conformance, ours" if is_ours(program) else "conformance") + self.where
            found.append(Case(group, program, lambda run=run, program=program: run(program)))
        return found


def reference_of(own_library):
    """The version whose listed differences are expected: the newer of two from rdma-core 60 on."""
    match = re.search(r"\.so\.1\.\d+\.(\d+)", own_library)
    return "65.0" if match and int(match[1]) >= 60 else "44.0"
