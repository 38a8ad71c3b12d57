"""Starts and watches the processes of one host, and describes it: agent.py KIT

Reads a JSON object per line from standard input, the name of a method below and its arguments, and answers each with
a line. It runs on this host or, through ssh, on the other one; the controlling end is hosts.py. When its input ends, it
kills what it started and removes its files."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

if __package__:
    from . import facts
else:
    import facts

LIBRARY = "/librdmacm.so.1"
NODE = "/dev/infiniband/rdma_cm"
SAMPLE_SECONDS = 0.05


class Process:
    """A process in a session of its own, so that the processes that it starts can be found and killed."""

    def __init__(self, name, argv, env, folder):
        self.output = folder / (name + ".out")
        self.errors = folder / (name + ".err")
        self.libraries, self.used_node, self.killed = set(), False, False
        with open(self.output, "wb") as out, open(self.errors, "wb") as err:
            self.popen = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                                          start_new_session=True)

    def pids(self):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if os.getsid(int(entry)) == self.popen.pid:
                        yield entry
                except OSError:
                    pass

    def threads(self):
        """Thread ids, which the kernel lists as the owners of RDMA CM ids."""
        for pid in self.pids():
            try:
                yield from os.listdir("/proc/%s/task" % pid)
            except OSError:
                pass  # it has ended

    def look(self):
        """Notes the librdmacm that the processes have mapped, and whether they have opened the kernel's RDMA CM."""
        for pid in list(self.pids()):
            try:
                with open("/proc/%s/maps" % pid) as maps:
                    self.libraries.update(line.split()[-1] for line in maps if LIBRARY in line)
                folder = "/proc/%s/fd" % pid
                self.used_node |= any(os.readlink(os.path.join(folder, fd)) == NODE for fd in os.listdir(folder))
            except OSError:
                pass  # it has ended

    def kill(self, number=signal.SIGKILL):
        for pid in list(self.pids()):
            try:
                os.kill(int(pid), number)
            except OSError:
                pass


def cm_listeners():
    """Threads that made a listening RDMA CM id; None if the program rdma is missing or fails."""
    try:
        done = subprocess.run(["rdma", "resource", "show", "cm_id"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=True, universal_newlines=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    rows = [line.split() for line in done.stdout.splitlines() if " state LISTEN " in line]
    return {row[row.index("pid") + 1] for row in rows if "pid" in row}


def tcp_listens(port):
    for name in ["/proc/net/tcp", "/proc/net/tcp6"]:
        try:
            with open(name) as table:
                if any(words[1].endswith(":%04X" % port) and words[3] == "0A"
                       for words in map(str.split, table) if len(words) > 3):
                    return True
        except OSError:
            pass
    return False


class Agent:
    def __init__(self, kit):
        self.kit = kit
        self.scratch = tempfile.TemporaryDirectory(prefix="rdmacm-verify-")
        self.folder = pathlib.Path(self.scratch.name)
        self.processes = {}
        self.lock = threading.Lock()
        threading.Thread(target=self.sample, daemon=True).start()

    def sample(self):
        while True:
            with self.lock:
                running = [process for process in self.processes.values() if process.popen.poll() is None]
            for process in running:
                if not (process.libraries and process.used_node):
                    process.look()
            time.sleep(SAMPLE_SECONDS)

    def start(self, name, argv, env=None, library=None):
        """library: "own" (what the machine's loader finds), "ours", or a folder. {kit} and {folder} in the words are
        replaced."""
        places = {"kit": str(self.kit), "folder": str(self.folder)}
        argv = [word.format(**places) if "{" in word else word for word in argv]
        environment = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
        environment["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        folder = {"own": None, "ours": str(self.kit / "lib")}.get(library, library)
        path = [word for word in [folder, os.environ.get("RDMACM_VERIFY_LIBRARY_PATH")] if word]
        if path:
            environment["LD_LIBRARY_PATH"] = ":".join(path)
        environment.update({key: value.format(**places) for key, value in (env or {}).items()})
        try:
            process = Process(name, argv, environment, self.folder)
        except OSError as error:
            return {"error": str(error)}
        with self.lock:
            self.processes[name] = process
        return {"pid": process.popen.pid}

    def ready(self, name, kind, limit):
        """Waits until a server is ready. kind: "cm" (an RDMA CM id listens), "tcp:PORT", or "line:TEXT" (printed)."""
        process, end = self.processes[name], time.monotonic() + limit
        while time.monotonic() < end:
            if self.is_ready(process, kind):
                process.look()
                return {"ready": True}
            if process.popen.poll() is not None:
                return {"ready": False, "why": "it ended"}
            time.sleep(0.02)
        return {"ready": False, "why": "not ready after %d s" % limit}

    @staticmethod
    def is_ready(process, kind):
        what, _, value = kind.partition(":")
        if what == "tcp":
            return tcp_listens(int(value))
        if what == "line":
            return value in process.output.read_text(errors="replace")
        listeners = cm_listeners()
        # Without the program rdma: an id was made, and the listener follows at once in all programs that are run.
        return process.used_node if listeners is None else bool(listeners & set(process.threads()))

    def wait(self, name, limit):
        """Waits for a process, which is killed after the limit, and returns what it printed."""
        process = self.processes[name]
        try:
            process.popen.wait(limit)
        except subprocess.TimeoutExpired:
            process.killed = True
        process.kill()
        status = process.popen.wait()
        with self.lock:
            self.processes.pop(name)
        return {"status": "hung" if process.killed else 128 - status if status < 0 else status,
                "out": process.output.read_text(errors="replace"), "err": process.errors.read_text(errors="replace"),
                "libraries": sorted(process.libraries), "used_node": process.used_node}

    def terminate(self, name):
        self.processes[name].kill(signal.SIGTERM)
        return {}

    @staticmethod
    def has(names):
        """Which of these programs the host has."""
        folders = os.environ.get("PATH", "").split(":") + ["/usr/sbin", "/sbin"]
        return {"programs": [name for name in names
                             if any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders)]}

    @staticmethod
    def describe(device=None, address=None):
        return facts.describe(device, address)

    def close(self):
        for process in self.processes.values():
            process.kill()
        self.scratch.cleanup()


def main():
    agent = Agent(pathlib.Path(sys.argv[1]).resolve())
    # An interrupted terminal ends the controlling end, whose end of the pipe then closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = getattr(agent, request.pop("call"))(**request)
            except Exception as error:  # the other end reports it with the case
                answer = {"error": "%s: %s" % (type(error).__name__, error)}
            print(json.dumps(answer), flush=True)
    finally:
        agent.close()


if __name__ == "__main__":
    main()
