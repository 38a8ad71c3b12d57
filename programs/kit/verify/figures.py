"""Speed: rsockets of both libraries, TCP on the same interface, and raw verbs (programs of tests/bench/), in turns."""

import collections
import re
import statistics

from .session import Case, result

ROUNDS = 3
LIMIT = 60
TASKS = ["pingpong:block:64:2000", "pingpong:block:4096:2000", "pingpong:poll:64:2000", "up:block:64:5000",
         "up:block:4096:3000", "up:block:65536:2000", "up:block:1000000:300", "up:block:65536:600:16"]
# What raw has: pingpong:SIZE:COUNT and write:SIZE:COUNT. Soft-iWARP refuses the queues of the latter in part.
RAW_TASKS = ["pingpong:64:2000", "pingpong:4096:2000", "write:4096:3000", "write:65536:2000", "write:1000000:300"]
COLUMNS = [("own", "rsbench rdma", "own"), ("ours", "rsbench rdma", "ours"), ("tcp", "rsbench tcp", "own"), ("raw", "raw", "own")]


class Figures:
    """pairs: the hosts, the address and the folders of the libraries."""

    def __init__(self, pairs, short=False):
        self.pairs, self.rounds = pairs, 1 if short else ROUNDS
        self.tasks, self.raw_tasks = (TASKS[:1], RAW_TASKS[:1]) if short else (TASKS, RAW_TASKS)

    def one(self, column, program, library):
        """Returns {figure: microseconds} of one run, and the lines of a failure."""
        self.pairs.port += 3
        place = [str(self.pairs.address), str(self.pairs.port)]
        words = ["{kit}/bench/" + program.split()[0], *program.split()[1:]]
        tasks = self.raw_tasks if column == "raw" else self.tasks
        folder = self.pairs.folders[library]
        server = self.pairs.server.start([*words, "server", *place], folder)
        ready = self.pairs.server.ask("ready", name=server, kind="line:ready", limit=20)
        client = self.pairs.client.run([*words, "client", *place, *tasks, "quit"], folder, limit=LIMIT)
        ended = self.pairs.server.wait(server, 5)
        found = {raw_name(name): float(value) for name, value in re.findall(r"^(\S+) ([\d.]+)$", client.out, re.M)}
        failed = client.status != 0 or not ready["ready"]
        return found, [line for text in (client.err, ended.out, ended.err) for line in text.splitlines()][-5:] if failed else []

    def measure(self):
        values, trouble = collections.defaultdict(list), {}
        for _ in range(self.rounds):
            for column, program, library in COLUMNS:
                found, failed = self.one(column, program, library)
                for name, value in found.items():
                    values[name, column].append(value)
                if failed:
                    trouble[column] = failed
        figures = collections.defaultdict(dict)
        for (name, column), several in sorted(values.items()):
            figures[f"{name}, us"][column] = round(statistics.median(several), 2)
        detail = [f"{column}: {line}" for column, lines in trouble.items() for line in lines]
        if "ours" in trouble and "own" not in trouble:
            return result("fails", "rsbench fails with ours only", detail, figures)
        facts = f"medians of {self.rounds}" + (f"; incomplete: {', '.join(trouble)}" if trouble else "")
        return result("cannot" if not figures else "same", facts, detail, figures)

    def cases(self):
        return [Case("figures", "rsockets, TCP, raw verbs", self.measure)]


def raw_name(name):
    """A figure of raw under the name that rsbench gives to its own."""
    name = re.sub(r"^pingpong:(\d)", r"pingpong:block:\1", name)
    return re.sub(r"^write:", "up:block:", name)
