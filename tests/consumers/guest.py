"""Runs the packaged programs in the lab, with rdmacm-verify's code (programs/kit/verify): guest.py DEVICE ADDRESS BUILD PATTERN"""

import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent / "programs/kit")]
import programs
from harness import matches
from verify import hosts, pairs
from verify.session import Case, result

SCRIPTS = ["pyverbs", "mpi", "iser", "migration"]
LIMIT = 300
LIBRARIES = {"own": os.environ["LAB_REFERENCE"], "ours": os.environ["LAB_OURS"]}


class Scripts:
    """Programs that need more than a server and a client: a script for each, run with one library and then the other."""

    def __init__(self, host, two):
        self.host, self.two = host, two

    def run(self, name, library):
        self.two.port += 1
        command = [str(HERE / "scripts" / name), self.two.address, str(self.two.port)]
        return self.host.run(command, LIBRARIES[library], limit=LIMIT)

    def compare(self, name):
        own, ours = self.run(name, "own"), self.run(name, "ours")
        shown = [[line for line in ended.out.splitlines() if line.startswith("result:")] for ended in (own, ours)]
        detail = [f"{word}: {line}" for word, ended in (("reference", own), ("ours", ours))
                  for line in (ended.out + ended.err).splitlines()[-8:]]
        if own.status != 0 or not shown[0]:
            alike = "; ours alike" if ours.status == own.status else f"; ours: {ours.status}"
            return result("cannot", f"fails with the reference, too: status {own.status}{alike}", detail)
        if ours.status != 0 or shown[0] != shown[1]:
            return result("fails", f"status {ours.status}; works with the reference", detail)
        wrong = [path for path in ours.libraries if pairs.OURS not in path] + [path for path in own.libraries if pairs.OURS in path]
        if wrong or not (own.used_node and ours.used_node and own.libraries and ours.libraries):
            return result("differs", f"not shown to use librdmacm: {own.libraries} {ours.libraries}", detail)
        return result("same", "; ".join(" ".join(line.split()[1:]) for line in shown[1]))

    def cases(self):
        return [Case("scripts", name, lambda name=name: self.compare(name)) for name in SCRIPTS]


def main():
    device, address, build, pattern = sys.argv[1:]
    host = hosts.local()
    described = host.ask("describe", device=device, address=address)
    two = pairs.Pairs(host, host, described, described, LIBRARIES)
    for case in Scripts(host, two).cases() + two.cases("programs", programs.table(build)):
        if matches(case.name, pattern):
            print(json.dumps({"name": case.name, **case.run()._asdict()}), flush=True)
    host.close()
    print("all ran", flush=True)


main()
