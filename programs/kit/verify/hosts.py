"""The controlling end of agent.py: this host, and another one through ssh."""

import collections
import json
import pathlib
import shlex
import subprocess
import sys

KIT = pathlib.Path(__file__).resolve().parent.parent
# status: exit status, 128 + N for signal N, or "hung"; used_node: whether the kernel's RDMA CM was seen open.
Ended = collections.namedtuple("Ended", "status out err libraries used_node")


class HostError(Exception):
    """A host cannot be used."""


class Host:
    """name: "here" or "peer"."""

    def __init__(self, name, command):
        self.name, self.number = name, 0
        self.agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True,
                                      start_new_session=True)

    def ask(self, call, **arguments):
        try:
            self.agent.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            self.agent.stdin.flush()
            line = self.agent.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise HostError(f"the agent on {self.name} has ended: is python3 there, and does ssh connect without questions?")
        answer = json.loads(line)
        if "error" in answer:
            raise HostError(f"{self.name}: {answer['error']}")
        return answer

    def start(self, argv, library=None, env=None):
        """Starts a process and returns its name."""
        self.number += 1
        name = f"{pathlib.Path(argv[0]).name}-{self.number}"
        self.ask("start", name=name, argv=list(map(str, argv)), env=env, library=library)
        return name

    def wait(self, name, limit):
        return Ended(**self.ask("wait", name=name, limit=limit))

    def run(self, argv, library=None, env=None, limit=60):
        return self.wait(self.start(argv, library, env), limit)

    def close(self):
        self.agent.stdin.close()
        self.agent.wait()


def local():
    return Host("here", [sys.executable, str(KIT / "verify/agent.py"), str(KIT)])


class Remote(Host):
    """Copies the kit to a temporary folder of the other host, which is removed at the end."""

    def __init__(self, target, ssh):
        self.ssh = [*shlex.split(ssh), "-o", "BatchMode=yes", target]
        made = subprocess.run([*self.ssh, "mktemp -d"], stdout=subprocess.PIPE, check=False, universal_newlines=True)
        self.folder = made.stdout.strip()
        if made.returncode or not self.folder:
            raise HostError("ssh does not reach the other host without questions: try ssh -o BatchMode=yes TARGET true")
        archive = subprocess.Popen(["tar", "-C", str(KIT), "--exclude=./results*", "-cf", "-", "."], stdout=subprocess.PIPE)
        unpack = subprocess.run([*self.ssh, f"tar -C {self.folder} -xf -"], stdin=archive.stdout, check=False)
        if archive.wait() or unpack.returncode:
            raise HostError("the kit could not be copied to the other host")
        super().__init__("peer", [*self.ssh, f"exec python3 {self.folder}/verify/agent.py {self.folder}"])

    def close(self):
        super().close()
        subprocess.run([*self.ssh, f"rm -rf -- {shlex.quote(self.folder)}"], check=False)
