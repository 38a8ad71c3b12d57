#!/usr/bin/env python3
"""Servers and clients of several processes, for automatic mode.

auto_processes.py fork|prefork|daemon|chroot|nobody ADDRESS PORT CONNECTIONS: an echo server; prints "listening".
    nobody accepts nothing until a line arrives on its standard input.
auto_processes.py child-reads ADDRESS PORT: a client whose child receives what its parent sends.
auto_processes.py sink ADDRESS PORT CONNECTIONS: a server that only receives.
auto_processes.py child-writes ADDRESS PORT: a client whose child sends; its parent ends right after the child.
auto_processes.py inetd ADDRESS PORT CONNECTIONS: a server that executes cat(1) for each connection, by vfork(2).
auto_processes.py asks ADDRESS PORT CONNECTIONS: a server that executes a program for each connection that has not the
    library, and prints the peer that this sees.
auto_processes.py hands-on ADDRESS PORT CONNECTIONS: a server whose listener is served by a program that has not the
    library.
auto_processes.py orphan ADDRESS PORT: a client that ends while its child has the connection, which the child uses then.
auto_processes.py datagrams ADDRESS PORT CONNECTIONS: answers a datagram each; datagram ADDRESS PORT: sends one.
auto_processes.py instances ADDRESS PORT COUNT: a client that is a member of so many epoll instances while it connects.
auto_processes.py passes ADDRESS PORT CONNECTIONS: a server that passes each connection to a program that has not the
    library, and echoes; without CONNECTIONS the client of it. passes-listener: the same with the listener.
auto_processes.py spawns-WAY ADDRESS PORT CONNECTIONS: a server that executes a program without the library for each
    connection, which echoes; without CONNECTIONS the client of an echo server, whose program sends and receives. WAY
    is one of SPAWNS.
auto_processes.py stdio ADDRESS PORT CONNECTIONS: a server that answers by the C library's stdio.
auto_processes.py strangers ADDRESS PORT LIMIT: an echo server on epoll, with LIMIT descriptors (0: as many as there may
    be). It prints how many it has for each line on its standard input.
auto_processes.py go|scan|hold ADDRESS PORT COUNT: clients that connect and go; half of a handshake by TCP, COUNT times;
    connections that stay silent, and are reset when COUNT have been made.
auto_processes.py numbers ADDRESS PORT: a client whose child puts files at the numbers behind the program's, as sshd does,
    and prints the numbers that it cannot have.
auto_processes.py says ADDRESS PORT: a client that sends a byte and prints how the connection ends."""

import ctypes
import errno
import os
import resource
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys

SIZE = 200_000


def echo(connection):
    """Returns the number of bytes."""
    total = 0
    while data := connection.recv(65536):
        connection.sendall(data)
        total += len(data)
    connection.close()
    return total


def listen(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(50)
    print("listening", listener.getsockname()[1], flush=True)
    return listener


def without_library():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def hands_on(address, port, connections):
    program = f"""
import socket
listener = socket.socket(fileno=0)
for _ in range({connections}):
    connection, _ = listener.accept()
    try:
        print("received", len(connection.recv(1)), flush=True)
        connection.sendall(b"x")
    except ConnectionError as error:
        print("lost", error, flush=True)
"""
    # The program prints "listening" before.
    subprocess.run([sys.executable, "-c", program], stdin=listen(address, port), env=without_library(), check=True)


def datagrams(address, port, count):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))
    print("listening", port, flush=True)
    for _ in range(count):
        server.sendto(*server.recvfrom(100))


def datagram(address, port):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect((address, port))
    client.send(b"question")
    print("got", client.recv(100).decode())


def child(run):
    """Returns the child's id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended_well(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def tell(connection, peer):
    assert connection.getpeername() == peer, "the child has another peer"
    print("echoed", echo(connection), flush=True)


def server(way, address, port, connections):
    listener = listen(address, port)
    if way == "daemon" and os.fork():
        os._exit(0)
    if way == "chroot":
        os.makedirs("/tmp/empty", exist_ok=True)
        os.chroot("/tmp/empty")
        os.setgid(65534)
        os.setuid(65534)
    if way == "passes-listener":
        assert pass_on(listener, ECHO, str(connections)).wait() == 0
        return
    if way == "nobody":
        sys.stdin.readline()
    if way == "prefork":
        def work():
            for _ in range(connections):
                tell(*listener.accept())
        workers = [child(work) for _ in range(3)]
        sys.stdin.readline()
        for worker in workers:
            os.kill(worker, 9)
        return
    for _ in range(connections):
        connection, peer = listener.accept()
        if way == "fork":
            def serve(connection=connection, peer=peer):
                listener.close()
                tell(connection, peer)
            pid = child(serve)
            connection.close()
            assert ended_well(pid)
        elif way == "sink":
            total = 0
            while data := connection.recv(65536):
                total += len(data)
            print("received", total, flush=True)
        elif way == "asks":
            program = "import socket; print('peer', socket.socket(fileno=0).getpeername()[0])"
            subprocess.run([sys.executable, "-c", program], stdin=connection, env=without_library(), check=True)
            connection.close()
        elif way == "passes":
            assert pass_on(connection, ECHO, "1").wait() == 0
        elif way == "stdio":
            answer_by_stdio(connection)
        elif way.startswith("spawns-"):
            assert SPAWNS[way.removeprefix("spawns-")](connection, [sys.executable, "-c", ECHO_NUMBER]) == 0
            connection.close()
            print("served", flush=True)
        elif way == "inetd":
            with subprocess.Popen(["cat"], stdin=connection, stdout=connection):
                connection.close()
            print("echoed 100000", flush=True)
        else:
            tell(connection, peer)


def child_reads(address, port):
    connection = socket.create_connection((address, port))
    data = os.urandom(SIZE)

    def receive():
        got = b""
        while more := connection.recv(65536):
            got += more
        assert got == data, f"{len(got)} bytes, or other ones"

    pid = child(receive)
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    assert ended_well(pid)
    print("ok")


def child_writes(address, port):
    connection = socket.create_connection((address, port))
    assert ended_well(child(lambda: connection.sendall(b"x" * 40 * SIZE)))
    print("ok")


def go(address, port, count):
    for _ in range(count):
        socket.create_connection((address, port)).close()
    print("ok")


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff


def scan(address, port, count):
    """SYN packets from many ports. The kernel, which knows nothing of them, resets what is answered."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    ends = socket.inet_aton(address) * 2
    for number in range(count):
        header = struct.pack("!HHIIBBH", 20_000 + number, port, number, 0, 5 << 4, 2, 1000)
        pseudo = ends + struct.pack("!BBH", 0, socket.IPPROTO_TCP, 20)
        sum_of = checksum(pseudo + header + b"\0\0\0\0")
        raw.sendto(header + struct.pack("!HH", sum_of, 0), (address, 0))
    print("ok")


def hold(address, port, count):
    """At most 200 at a time, which is what a program may have without further ado. They go when a line is read, or at
    the end of the input."""
    for first in range(0, count, 200):
        held = [socket.create_connection((address, port)) for _ in range(min(200, count - first))]
        sys.stdin.readline()
        for connection in held:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    print("ok")


class Strangers:
    """The epoll server. Its connections are non-blocking."""

    def __init__(self, address, port, limit):
        if limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        self.listener, self.epoll, self.connections = listen(address, port), select.epoll(), {}
        self.listener.setblocking(False)
        self.epoll.register(self.listener, select.EPOLLIN)
        self.epoll.register(0, select.EPOLLIN)
        self.refused, self.is_full = 0, False

    def run(self):
        while True:
            for number, _ in self.epoll.poll():
                if number == 0:
                    if not sys.stdin.readline().strip():
                        return
                    print("descriptors", len(os.listdir("/proc/self/fd")), "refused", self.refused, flush=True)
                elif number == self.listener.fileno():
                    self.accept()
                else:
                    self.serve(number)

    def accept(self):
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            assert error.errno == errno.EMFILE, error
            self.refused += 1
            if not self.is_full:
                print("full", flush=True)
            self.is_full = True
            return
        self.is_full = False
        connection.setblocking(False)
        self.connections[connection.fileno()] = connection
        self.epoll.register(connection, select.EPOLLIN)

    def serve(self, number):
        connection = self.connections[number]
        try:
            data = connection.recv(65536)
            if data:
                connection.setblocking(True)
                connection.sendall(data)
                connection.setblocking(False)
                return
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        self.epoll.unregister(number)
        self.connections.pop(number).close()


def orphan(address, port):
    connection = socket.create_connection((address, port))
    reading, writing = os.pipe()
    if os.fork():
        os._exit(0)
    # The parent has ended when the pipe is read to its end.
    os.close(writing)
    os.read(reading, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        print("the connection ended", connection.recv(1))
    except ConnectionError as error:
        print("the connection ended", error)


def instances(address, port, count):
    """Each instance must report the connection, and then the data, with the events asked for. Half of them have the
    socket before connect(2), the others while it connects; one gives it up."""
    connection = socket.socket()
    connection.setblocking(False)
    members = [select.epoll() for _ in range(count)]
    for member in members[::2]:
        member.register(connection, select.EPOLLOUT | select.EPOLLONESHOT)
    assert connection.connect_ex((address, port)) == errno.EINPROGRESS
    for member in members[1::2]:
        member.register(connection, select.EPOLLOUT | select.EPOLLONESHOT)
    members.pop().unregister(connection)
    for member in members:
        assert member.poll(30) == [(connection.fileno(), select.EPOLLOUT)], "not connected"
        assert not member.poll(0), "reported twice"
    connection.sendall(b"x")
    for member in members:
        member.modify(connection, select.EPOLLIN)
        assert member.poll(30) == [(connection.fileno(), select.EPOLLIN)], "no data"
    print("got", len(connection.recv(100)), "by", len(members), "instances")


ECHO = """
import socket, sys
ours = socket.socket(fileno=0)
_, [number], _, _ = socket.recv_fds(ours, 1, 1)
given = socket.socket(fileno=number)
for _ in range(int(sys.argv[1])):
    connection = given.accept()[0] if sys.argv[1] != "1" else given
    total = 0
    while data := connection.recv(65536):
        connection.sendall(data)
        total += len(data)
    connection.close()
    print("echoed", total, flush=True)
"""
SEND = """
import socket, sys
ours = socket.socket(fileno=0)
_, [number], _, _ = socket.recv_fds(ours, 1, 1)
connection = socket.socket(fileno=number)
connection.sendall(b"x" * 500_000)
connection.shutdown(socket.SHUT_WR)
total = 0
while data := connection.recv(65536):
    total += len(data)
assert total == 700_000, total
"""


def pass_on(given, program, *arguments):
    """Executes a program without the library, which gets the socket by SCM_RIGHTS. Returns the process."""
    ours, its = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=its, env=without_library())
    socket.send_fds(ours, [b"x"], [given.fileno()])
    given.close()
    return process


def passes(address, port):
    """The first bytes are sent by this process, and must be the first ones there."""
    connection = socket.create_connection((address, port))
    connection.sendall(b"y" * 200_000)
    assert pass_on(connection, SEND).wait() == 0


ECHO_NUMBER = """
import socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
while data := connection.recv(65536):
    connection.sendall(data)
"""
ASK_NUMBER = """
import socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
connection.sendall(b"x" * 50_000)
connection.shutdown(socket.SHUT_WR)
total = 0
while data := connection.recv(65536):
    total += len(data)
assert total == 70_000, total
"""


def by_subprocess(connection, program):
    """By vfork(2), with the connection as its standard input. Returns the status, as the others do."""
    return subprocess.run([*program, "0"], stdin=connection, env=without_library(), check=False).returncode


def by_subprocess_closing(connection, program):
    with subprocess.Popen([*program, "0"], stdin=connection, env=without_library()) as process:
        connection.close()
        return process.wait()


def by_fork(connection, program):
    pid = os.fork()
    if pid == 0:
        os.dup2(connection.fileno(), 0)
        os.execve(program[0], [*program, "0"], without_library())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def by_fork_without_handlers(connection, program):
    """_Fork(3). The lock of the interpreter stays with the only thread of the child."""
    pid = ctypes.PyDLL(None)._Fork()
    assert pid >= 0
    if pid == 0:
        os.dup2(connection.fileno(), 0)
        os.execve(program[0], [*program, "0"], without_library())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def strings(values):
    return (ctypes.c_char_p * (len(values) + 1))(*[value.encode() for value in values], None)


def by_pidfd_spawn(connection, program, name="pidfd_spawn", copies=True):
    libc, number = ctypes.CDLL(None), connection.fileno()
    # Larger than posix_spawn_file_actions_t.
    actions, process = ctypes.create_string_buffer(1024), ctypes.c_int(-1)
    assert libc.posix_spawn_file_actions_init(actions) == 0
    if copies:
        assert libc.posix_spawn_file_actions_adddup2(actions, number, 0) == 0
    arguments = strings([*program, "0" if copies else str(number)])
    environment = strings([f"{name}={value}" for name, value in without_library().items()])
    error = libc[name](ctypes.byref(process), program[0].encode(), actions, None, arguments, environment)
    assert error == 0, os.strerror(error)
    return os.waitid(os.P_PIDFD, process.value, os.WEXITED).si_status


def by_pass_fds(connection, program):
    number = connection.fileno()
    return subprocess.run([*program, str(number)], pass_fds=[number], env=without_library(), check=False).returncode


def by_posix_spawn(connection, program):
    actions = [(os.POSIX_SPAWN_DUP2, connection.fileno(), 0)]
    pid = os.posix_spawn(program[0], [*program, "0"], without_library(), file_actions=actions)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def by_posix_spawn_inherited(connection, program):
    connection.set_inheritable(True)
    pid = os.posix_spawn(program[0], [*program, str(connection.fileno())], without_library())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def shell_command(connection, program):
    return shlex.join(["env", "-u", "LD_PRELOAD", *program, "0"]) + f" <&{connection.fileno()}"


def by_system(connection, program):
    connection.set_inheritable(True)
    return os.system(shell_command(connection, program))


def by_popen(connection, program):
    """The C library's: Python's is a subprocess."""
    libc = ctypes.CDLL(None)
    libc.popen.restype = ctypes.c_void_p
    connection.set_inheritable(True)
    stream = libc.popen(shell_command(connection, program).encode(), b"r")
    connection.close()
    return libc.pclose(ctypes.c_void_p(stream))


SPAWNS = {"subprocess": by_subprocess, "subprocess-closing": by_subprocess_closing, "pass_fds": by_pass_fds,
          "posix_spawn": by_posix_spawn, "posix_spawn-inherited": by_posix_spawn_inherited, "system": by_system,
          "popen": by_popen, "fork": by_fork, "_Fork": by_fork_without_handlers, "pidfd_spawn": by_pidfd_spawn}


def spawns(way, address, port):
    """The first bytes are sent by this process, and must be the first ones there."""
    connection = socket.create_connection((address, port))
    connection.sendall(b"y" * 20_000)
    assert SPAWNS[way](connection, [sys.executable, "-c", ASK_NUMBER]) == 0
    print("ok")


def spawns_later(way, address, port):
    """The number was inheritable before connect(2)."""
    connection = socket.socket()
    connection.set_inheritable(True)
    connection.connect((address, port))
    connection.sendall(b"y" * 20_000)
    program = [sys.executable, "-c", ASK_NUMBER]
    if way == "later":
        assert os.system(shell_command(connection, program)) == 0
    else:
        assert by_pidfd_spawn(connection, program, "pidfd_spawnp", copies=False) == 0
    print("ok")


def spawns_few(address, port):
    """The first program is executed while one descriptor is left, which the loader needs, and does not use the
    connection."""
    connection = socket.socket()
    connection.set_inheritable(True)
    connection.connect((address, port))
    connection.sendall(b"y" * 20_000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
    assert os.system("exit 0") == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.system(shell_command(connection, [sys.executable, "-c", ASK_NUMBER])) == 0


def answer_by_stdio(connection):
    """Numbers 0 and 1 are the socket, as in the child of a server of the old kind."""
    libc = ctypes.CDLL(None)
    kept = os.dup(1)
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    got = libc.getchar()
    libc.putchar(got)
    libc.fflush(None)
    os.dup2(kept, 1)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    print("answered", got, flush=True)


def numbers(address, port):
    connection = socket.create_connection((address, port))
    first = connection.fileno() + 1

    def put():
        refused = []
        for number in range(first, first + 20):
            try:
                os.dup2(0, number)
            except OSError:
                refused.append(number)
        print("refused", refused, flush=True)

    assert ended_well(child(put))
    connection.sendall(b"x" * SIZE)


def says(address, port):
    connection = socket.create_connection((address, port))
    try:
        connection.sendall(b"x")
        print("got", len(connection.recv(1)))
    except ConnectionError:
        print("got reset")


def main():
    way, address, port, *count = sys.argv[1:]
    if way == "child-reads":
        child_reads(address, int(port))
    elif way == "child-writes":
        child_writes(address, int(port))
    elif way == "orphan":
        orphan(address, int(port))
    elif way == "numbers":
        numbers(address, int(port))
    elif way == "says":
        says(address, int(port))
    elif way == "passes" and not count:
        passes(address, int(port))
    elif way == "spawns-few":
        spawns_few(address, int(port))
    elif way.startswith("spawns-later"):
        spawns_later(way.removeprefix("spawns-"), address, int(port))
    elif way.startswith("spawns-") and not count:
        spawns(way.removeprefix("spawns-"), address, int(port))
    elif way == "instances":
        instances(address, int(port), int(count[0]))
    elif way == "datagrams":
        datagrams(address, int(port), int(count[0]))
    elif way == "datagram":
        datagram(address, int(port))
    elif way == "hands-on":
        hands_on(address, int(port), int(count[0]))
    elif way in ("go", "scan", "hold"):
        {"go": go, "scan": scan, "hold": hold}[way](address, int(port), int(count[0]))
    elif way == "strangers":
        Strangers(address, int(port), int(count[0])).run()
    else:
        server(way, address, int(port), int(count[0]))


main()
