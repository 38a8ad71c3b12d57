"""The tests of librspreload on the host, with or without RDMA: with a librdmacm that uses kernel sockets
(fake_rdmacm.c) a program must behave as without librspreload, and every rsocket must be closed."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from harness import DEVICES, TOP, dist_dir

HERE = pathlib.Path(__file__).resolve().parent
OUT = TOP / "target/preload-own"
LOG = OUT / "log"
PRELOAD = dist_dir() / "lib/rsocket/librspreload.so"
PROGRAMS = TOP / "target/tests-c/preload"
MODES = "blocking timeouts select poll select-many epoll asyncio socketserver datagrams".split()


def fake_environment(**more):
    return {**os.environ, "RS_FAKE_LOG": str(LOG), "LD_LIBRARY_PATH": str(PROGRAMS),
            "LD_PRELOAD": str(PRELOAD), "RS_MODE": "rdma", **more}


def with_fake(command, **more):
    """Runs a command with kernel sockets as rsockets, and a log of them; it must succeed."""
    LOG.unlink(missing_ok=True)
    done = subprocess.run(command, check=False, env=fake_environment(**more), text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}"


def logged(word):
    return len(re.findall(rf"^{word} ", LOG.read_text(), re.M)) if LOG.exists() else 0


def check_all_closed():
    """All rsockets were closed."""
    made, accepted, epoll, closed = map(logged, ["socket", "accept", "epoll", "close"])
    assert made + accepted + epoll == closed, \
        f"{made} made, {accepted} accepted, {epoll} epoll instances, {closed} closed"


def behaves_alike(program):
    with_fake([program])
    check_all_closed()
    assert logged("socket") > 100 and logged("epoll") > 0, "no rsockets were made"


def falls_back(program):
    with_fake([program], RS_FAKE_FAIL="1")
    assert not LOG.exists(), "rsockets were made"


def sizes_are_set(program):
    with_fake([program], RS_SQ_SIZE="100", RS_RQ_SIZE="0", RS_INLINE="16")
    lines = LOG.read_text().splitlines()
    for pattern in ["option 0 of [0-9]*", "to 100", "option 2 of [0-9]*", "to 16"]:
        assert any(re.fullmatch(pattern, line) for line in lines), "\n".join([f"no line {pattern} in:", *lines[:6]])
    assert not any("option 1" in line for line in lines), "RS_RQ_SIZE=0 was set"


def archive_sum(environment):
    with subprocess.Popen(["tar", "cf", "-", "-C", TOP, "src"], stdout=subprocess.PIPE, env=environment) as tar:
        return subprocess.run(["sha1sum"], check=True, stdin=tar.stdout, stdout=subprocess.PIPE, env=environment).stdout


def passes_through():
    """A program that has nothing to do with sockets writes the same bytes, and makes no socket."""
    LOG.unlink(missing_ok=True)
    assert archive_sum(None) == archive_sum(fake_environment()), "the bytes differ"
    assert not LOG.exists(), "rsockets were made"


def echoes(mode):
    """Python's ways to wait: what was sent comes back, and every rsocket was closed."""
    with_fake([sys.executable, HERE / "echo.py", mode, "127.0.0.1"])
    check_all_closed()
    assert logged("socket") > 0, "no rsockets were made"


NOT_INHERITED = """
import ctypes, os, socket
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
    # Python's sockets ask for SOCK_CLOEXEC.
    assert ctypes.CDLL(None).socket(socket.AF_INET, kind, 0) >= 0
numbers = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd >= 2000]
assert numbers and not any(map(os.get_inheritable, numbers)), numbers
"""


def rsockets_are_not_inherited():
    """A program that is executed gets the placeholders only."""
    with_fake([sys.executable, "-c", NOT_INHERITED])


def refused_close():
    with_fake([PROGRAMS / "refused_close"], RS_FAKE_BUSY="1")
    check_all_closed()
    with_fake([PROGRAMS / "refused_close"], RS_FAKE_CLOSE_FAILS="1")
    check_all_closed()


def on_the_host(program, report):
    report.check_command("the program by itself", [program])
    report.check("with librspreload, over rsockets made of sockets", behaves_alike, program)
    report.check("with librspreload, without RDMA", falls_back, program)
    report.check_command("a handler that leaves close, without the library", [PROGRAMS / "interrupted_close"])
    report.check("a handler that leaves close", with_fake, [PROGRAMS / "interrupted_close"])
    report.check("a close that is refused, and one that fails", refused_close)
    report.check("descriptors of executed programs", rsockets_are_not_inherited)
    report.check("RS_SQ_SIZE, RS_RQ_SIZE, RS_INLINE", sizes_are_set, program)
    report.check("a program without sockets", passes_through)
    for mode in MODES:
        report.check(f"echo.py {mode}", echoes, mode)


def prepare(_test, options, report, _values):
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "results").mkdir(parents=True)
    if options.part != "lab":
        on_the_host(PROGRAMS / "program", report)
    if options.part == "host":
        return None
    return {"modes": " ".join(MODES), "devices": [options.device] if options.device else DEVICES}
