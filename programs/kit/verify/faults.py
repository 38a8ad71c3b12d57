"""Faults that need no root (cases of tests/faults): killed peers, nobody listens, few descriptors; on one host."""

import pathlib
import tempfile

from harness.comparison import difference
from harness.processes import lines, observe

from .hosts import KIT
from .session import Case, result

NAMES = ["not_listening", "not_listening_sync", "killed_resolved", "killed_connecting", "killed_before_accept",
         "killed_listening", "killed_idle_client", "killed_idle_server", "killed_traffic_client", "killed_traffic_server",
         "killed_disconnecting_client", "killed_disconnected_server", "files", "files_sync", "backlog"]
# backlog waits for time-outs of the kernel, and so is the last.
LIMIT = 300
# Intended differences, in a file named as the case, as tests/run faults reads them.
KNOWN = KIT / "tests/faults/known"


class Faults:
    """host: this host, for results are files."""

    def __init__(self, host, facts):
        self.host, self.kind, self.address = host, facts["device"]["kind"], facts["address"]
        self.device = facts["device"]["device"]

    def run(self, name, library, folder):
        env = {"FAULTS_ADDR": self.address, "FAULTS_DEV": self.device, "FAULTS_FOLDER": str(folder),
               "LAB_OUT": str(folder / library)}
        (folder / library).mkdir()
        ended = self.host.run(["bash", "{kit}/tests/faults/guest", "{kit}/programs/faults/steps", self.kind, name], library, env, LIMIT)
        complete = (folder / library / name / "complete").exists()
        return None if complete else [str(ended.status), *(ended.out + ended.err).splitlines()[-5:]]

    def compared(self, name):
        with tempfile.TemporaryDirectory(prefix="rdmacm-verify-") as path:
            folder = pathlib.Path(path)
            for library in ("own", "ours"):
                trouble = self.run(name, library, folder)
                if trouble:
                    return result("cannot" if library == "own" else "fails", f"{library}: it did not run to its end", trouble)
            own, ours = folder / "own" / name, folder / "ours" / name
            if (own / "unsuited").exists():
                return result("cannot", " ".join(lines(own / "unsuited")))
            first, second = observe(own), observe(ours)
            differing = difference(first, second)
            hung = any("hang" in lines(status) for status in own.glob("*.status"))
        if hung:
            return result("cannot", "hangs with the own library", differing[:30])
        if differing and differing == lines(KNOWN / name):
            return result("same", f"{len(first)} lines, with the known difference")
        if differing:
            return result("differs", f"{len(differing)} lines", differing[:40])
        return result("same", f"{len(first)} lines")

    def cases(self):
        return [Case("faults", name, lambda name=name: self.compared(name)) for name in NAMES]
