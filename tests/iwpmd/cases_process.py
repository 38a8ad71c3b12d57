"""The daemon as a process: options, start, signals, configuration."""

import contextlib
import os
import re
import signal
import socket
import subprocess

import netlink as nl
from basics import TIMEOUT, Failure, expect, until
from kernel_side import Kernel
from net import SO_RCVBUFFORCE
from world import Daemon

NETLINK_RDMA = "20"


def _run(world, *arguments, wrap=(), env=None):
    """Runs the daemon until it exits. Returns (status, output)."""
    env = {**os.environ, **(env or {})}
    env.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run([*wrap, world.path, *arguments], env=env, stdin=subprocess.DEVNULL, cwd="/",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT, check=False)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def _udp_ports(pid):
    """Returns (file, port) of the process's UDP sockets."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
    found = []
    for name in "udp", "udp6":
        with open(f"/proc/{pid}/net/{name}") as file:
            for line in list(file)[1:]:
                words = line.split()
                if words[9] in inodes:
                    found.append((name, int(words[1].rpartition(":")[2], 16)))
    return found


def _netlink_groups(pid):
    with open("/proc/net/netlink") as file:
        for line in file:
            words = line.split()
            if words[1] == NETLINK_RDMA and words[2] == str(pid):
                return int(words[3], 16)
    return None


def case_starts(world):
    """-s: stays in the foreground and notifies systemd when it is ready."""
    daemon = Daemon(world, world.path)
    ports = _udp_ports(daemon.pid)
    expect("sockets at port 3935", sorted(p for p in ports if p[1] == 3935), [("udp", 3935), ("udp6", 3935)])
    expect("client sockets", sorted(p[0] for p in ports if p[1] != 3935), ["udp", "udp6"])
    expect("netlink groups", _netlink_groups(daemon.pid), 3)
    expect("printed", daemon.printed(), "")
    return f"notified {daemon.notified!r}"


def case_long_option(world):
    daemon = subprocess.Popen([world.path, "--systemd"], stdin=subprocess.DEVNULL)
    until(lambda: _netlink_groups(daemon.pid), "the netlink socket of iwpmd --systemd")
    daemon.kill()
    daemon.wait()


def case_daemonises(world):
    """Without -s: the caller exits with status 0, and the daemon continues in the background."""
    began = len(world.syslog.lines)
    expect("status", _run(world), (0, ""))
    pid = until(_daemons, "the daemon")[0]
    with open(f"/proc/{pid}/stat") as file:
        _state, parent, _group, session = file.read().rpartition(")")[2].split()[:4]
    files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)]
    facts = f"cwd {os.readlink(f'/proc/{pid}/cwd')}, files 0 to 2 {files}, session {session == str(pid)}"
    if int(parent) != 1 and int(parent) == os.getpid():
        raise Failure("still the caller's child")
    if session == str(os.getsid(0)):
        raise Failure("still in the caller's session")
    os.kill(pid, signal.SIGTERM)
    until(lambda: not _netlink_groups(pid), "the end of the daemon")
    expect("lines in the log", bool(world.syslog.of(pid, began)), True)
    return facts


def case_without_notify_socket(world):
    daemon = subprocess.Popen([world.path, "-s"], stdin=subprocess.DEVNULL)
    until(lambda: _netlink_groups(daemon.pid), "the netlink socket")
    daemon.send_signal(signal.SIGTERM)
    expect("status", daemon.wait(TIMEOUT), 0)


def case_abstract_notify_socket(world):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind("\0iwpmd-ready")
        notify.settimeout(TIMEOUT)
        daemon = subprocess.Popen([world.path, "-s"], stdin=subprocess.DEVNULL,
                                  env={**os.environ, "NOTIFY_SOCKET": "@iwpmd-ready"})
        message = notify.recv(4096)
        daemon.kill()
        daemon.wait()
    expect("notified", b"READY=1" in message, True)


def case_sigterm(world):
    daemon = Daemon(world, world.path)
    expect("status", daemon.end(signal.SIGTERM), 0)


def case_sighup(world):
    daemon = Daemon(world, world.path)
    expect("status", daemon.end(signal.SIGHUP), 1)


def case_sigint(world):
    daemon = Daemon(world, world.path)
    status = daemon.end(signal.SIGINT)
    return f"status {status}"


def case_ports_are_free_after_the_end(world):
    kernel = Kernel()
    daemon = Daemon(world, world.path, kernel=kernel)
    kernel.register()
    mapped = kernel.add(("127.0.0.1", 5000))
    daemon.end()
    socket.create_server(mapped).close()
    Daemon(world, world.path)


def case_sigusr1(world):
    """The mappings are listed in the log, and the daemon continues."""
    kernel = Kernel()
    daemon = Daemon(world, world.path, kernel=kernel)
    kernel.register()
    wanted = {("10.77.2.1", 5000), ("fd00:77:2::1", 5001), ("0.0.0.0", 5002)}
    mapped = {kernel.add(where) for where in sorted(wanted)}
    began = len(world.syslog.lines)
    daemon.process.send_signal(signal.SIGUSR1)
    for _, port in wanted | mapped:
        world.syslog.wait(daemon.pid, rf"\b{port}\b", began)
    kernel.acknowledged(0)
    return " / ".join(line.partition("]: ")[2] for line in world.syslog.of(daemon.pid, began))


def case_slow_log(world):
    """The daemon answers the kernel while the log is not read, and no line is lost."""
    if world.kind == "reference":
        return "not tried: it waits for the log"
    kernel = Kernel()
    daemon = Daemon(world, world.path, kernel=kernel)
    kernel.register()
    mapped = [kernel.add(("10.77.2.1", port)) for port in range(5000, 5100)]
    began = len(world.syslog.lines)
    with world.syslog.paused():
        daemon.process.send_signal(signal.SIGUSR1)
        until(world.syslog.is_full, "a log without space")
        kernel.add(("10.77.2.1", 6000))
    for _, port in mapped:
        world.syslog.wait(daemon.pid, rf"\b{port}\b", began)


def _daemons():
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _netlink_groups(int(pid))]


def _tried(arguments):
    """Returns (status, or None while it runs; output; whether a daemon runs then)."""
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               cwd="/")
    if "-s" in arguments:  # stays in the foreground, if it runs
        until(lambda: process.poll() is not None or _daemons(), f"{arguments}: start or end")
    else:
        process.wait(TIMEOUT)
    status = process.poll()
    text = "" if status is None else process.stdout.read().decode().strip().replace("\n", " / ")
    if status == 0 and "option" in text:  # not help or a version
        until(_daemons, f"{arguments}: a daemon")
    running = _daemons()
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    until(lambda: not _daemons(), "the daemon's end")
    return status, text, bool(running)


def case_options(world):
    """Unknown options are reported and ignored, as by the reference."""
    facts = []
    for arguments in (["-x"], ["--no-such"], ["-h"], ["--help"], ["-v"], ["--version"], ["-s", "extra"]):
        status, text, runs = _tried([world.path, *arguments])
        facts.append(f"{' '.join(arguments)}: status {status}, {text!r}, {'runs' if runs else 'does not run'}")
        if arguments[0] in ("-x", "--no-such") and (not runs or arguments[0].lstrip("-") not in text):
            raise Failure(facts[-1])
    return "; ".join(facts)


def _buffer_asked_for(world, config):
    """Returns the buffer sizes that the daemon requests for the netlink socket, and its log."""
    kernel, options = Kernel(), f"/run/options.{len(world.syslog.lines)}"
    daemon = Daemon(world, world.path, kernel=kernel, config=config, env={"IWPMD_OPTIONS": options})
    numbers = []
    if os.path.exists(options):
        with open(options) as file:
            numbers = [tuple(map(int, line.split())) for line in file]
    sizes = [value for option, value in numbers if option in (SO_RCVBUFFORCE, socket.SO_RCVBUF)]
    daemon.end()
    return sizes, [line.partition("]: ")[2] for line in daemon.log()]


def case_config(world):
    sizes, _ = _buffer_asked_for(world, "# a comment\n\nnl_sock_rbuf_size=1000000\n")
    expect("size", sizes, [1000000])


def case_config_default(world):
    """The default is 400 MB, as in iwpmd.conf(5); the reference keeps the system's size without a configuration."""
    sizes, _ = _buffer_asked_for(world, "# nothing\n")
    expect("size", sizes, world.by_kind([419430400], []))


def case_config_bad_lines(world):
    """Invalid lines are reported and skipped; valid ones have an effect."""
    config = ("no equals sign\nnl_sock_rbuf_size\nunknown_name=5\n=7\nnl_sock_rbuf_size=\nnl_sock_rbuf_size=many\n"
              f"{'x' * 5000}=1\nnl_sock_rbuf_size=-5\n\0\xff=1\nnl_sock_rbuf_size = 2000000\nnl_sock_rbuf_size=1000000\n")
    sizes, log = _buffer_asked_for(world, config)
    if world.kind == "ours":
        expect("size", sizes, [1000000])
    return f"sizes {sizes}, {len(log)} lines in the log: {[line[:70] for line in log[:6]]}"


def case_config_missing(world):
    kernel = Kernel()

    def remove_config():
        os.unlink("/etc/iwpmd.conf")
    Daemon(world, world.path, kernel=kernel, prepare=remove_config)
    kernel.register()
    return "the default is used"


def case_second_daemon(world):
    """Port 3935 is in use."""
    Daemon(world, world.path)
    began = len(world.syslog.lines)
    status, text = _run(world, "-s")
    if status == 0:
        raise Failure("status 0")
    return f"status {status}, printed {text!r}, log {[line.partition(']: ')[2] for line in world.syslog.lines[began:]]}"


def _without(world, family):
    kernel = Kernel()
    daemon = Daemon(world, world.path, kernel=kernel, env={"IWPMD_NO_FAMILY": str(int(family))})
    kernel.register()
    there, name = ("127.0.0.1", "udp") if family == socket.AF_INET6 else ("::1", "udp6")
    kernel.add((there, 5000))
    expect("UDP sockets", {p[0] for p in _udp_ports(daemon.pid)}, {name})


def case_without_ipv6(world):
    _without(world, socket.AF_INET6)


def case_without_ipv4(world):
    _without(world, socket.AF_INET)


def case_without_netlink(world):
    """A kernel without RDMA."""
    status, text = _run(world, "-s", env={"LD_PRELOAD": world.shim, "IWPMD_NO_FAMILY": str(int(socket.AF_NETLINK))})
    if status == 0:
        raise Failure("status 0")
    return f"status {status}, printed {text!r}"


def case_unprivileged(world):
    began = len(world.syslog.lines)
    try:
        status, text = _run(world, "-s", wrap=["timeout", "10", "setpriv", "--reuid=65534", "--regid=65534",
                                               "--clear-groups", "--bounding-set=-all"])
    except subprocess.TimeoutExpired:
        raise Failure("neither works nor exits") from None
    log = [line.partition("]: ")[2] for line in world.syslog.lines[began:]]
    return f"status {status}, printed {text!r}, log {log}"


def case_many_mappings(world):
    """More descriptors than select() supports."""
    kernel = Kernel()
    daemon = Daemon(world, world.path, kernel=kernel)
    kernel.register()
    for port in range(10000, 13000):
        kernel.add(("127.0.0.1", port))
    before = daemon.rss()
    for port in range(10000, 13000):
        kernel.remove(("127.0.0.1", port))
    kernel.acknowledged(0)
    expect("an operation after all", nl.NAMES[kernel.register()[1].op], "REG_PID")
    return f"3000 mappings, {before} kB"
