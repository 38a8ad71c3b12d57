#!/usr/bin/env python3
"""What a program observes of its sockets, one line for each observation: auto_compare.py CASE ADDRESS ADDRESS6 SILENT PORT

Run with librspreload in automatic mode and without it: the lines must be the same. Both ends are in this process. A socket
with SO_MARK uses TCP in automatic mode, too. SILENT is an address that does not answer."""

import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

TCP, RDMA = "tcp", "rdma"


def listener(address, port, *options, listen=True):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    new = socket.socket(family, socket.SOCK_STREAM)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in options:
        new.setsockopt(*option)
    new.bind((address, port))
    if listen:
        new.listen(64)
    return new


def connect(way, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    new = socket.socket(family, socket.SOCK_STREAM)
    if way == TCP:
        new.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)
    try:
        new.connect((address, port))
    except OSError as error:
        new.close()
        return errno.errorcode[error.errno]
    return new


def exchange(client, server):
    """Data in both directions, and the end."""
    client.sendall(b"question")
    question = server.recv(100)
    server.sendall(b"answer")
    answer = client.recv(100)
    client.shutdown(socket.SHUT_WR)
    end = server.recv(1)
    return question.decode(), answer.decode(), len(end)


def waiting(listening):
    """The number of connections that wait for accept(2): tcpi_unacked of a listener."""
    return struct.unpack_from("I", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]


def until(condition):
    while not condition():
        os.sched_yield()


def reuse_port(address, _address6, _silent, port):
    """One listener, then a second one at its port: the clients are spread over both. The first one has the option when it
    listens, or gets it later."""
    reuse = (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for when in "before", "after":
        listeners = [listener(address, port, *[reuse] if when == "before" else [])]
        served = {}
        for count in range(32):
            if count == 2:
                listeners[0].setsockopt(*reuse)
                listeners.append(listener(address, port, reuse))
            client = connect(RDMA if count % 2 == 0 else TCP, address, port)
            if isinstance(client, str):
                print("client", count, client)
                continue
            [ready] = select.select(listeners, [], [])[0]
            server = ready.accept()[0]
            print("client", count, *exchange(client, server))
            served[ready] = served.get(ready, 0) + 1
            client.close()
            server.close()
        print(when, "listen:", len(served), "listeners served", sum(served.values()), "clients")
        port += 1


def echo(listening, count=None):
    while count is None or count > 0:
        server = listening.accept()[0]
        try:
            while data := server.recv(100):
                server.sendall(data[::-1])
        except ConnectionError:
            pass
        server.close()
        count = count and count - 1


def ask(way, address, port):
    client = connect(way, address, port)
    if isinstance(client, str):
        return client
    answer = b""
    try:
        client.sendall(b"forwards")
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(100):
            answer += data
    except ConnectionError:
        answer = b"reset"
    client.close()
    return answer.decode()


def worker(address, port):
    """A process with a listener of its own at a port that others share. Returns its id when it listens."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            listening = listener(address, port, (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1))
            os.write(tell, b"x")
            echo(listening)
        finally:
            os._exit(1)
    os.read(ready, 1)
    return child


def reuse_port_of_processes(address, address6, _silent, port):
    """Two processes listen at the port, at the same address or not. The first one ends, and the other one goes on."""
    for first_at, second_at in (address, address), ("::", "::"), ("0.0.0.0", address):
        to = [address, address6] if first_at == "::" else [address]
        first, second = worker(first_at, port), worker(second_at, port)
        for number in range(6):
            print(first_at, number, [ask(RDMA, one, port) for one in to], [ask(TCP, one, port) for one in to])
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        print(first_at, "without the first", [ask(RDMA, one, port) for one in to])
        os.kill(second, signal.SIGKILL)
        os.waitpid(second, 0)
        port += 1


def defer_accept(address, _address6, _silent, port):
    """TCP_DEFER_ACCEPT is set before listen(2), as nginx does it afterwards, or by a child; the last listener's connections
    are accepted by a child."""
    option = (socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 600)
    for when in "before", "after", "by a child", "for a child":
        listening = listener(address, port, *[option] if when in ("before", "for a child") else [])
        if when == "after":
            listening.setsockopt(*option)
        server = os.fork()
        if server == 0:
            if when == "by a child":
                listening.setsockopt(*option)
            if when == "for a child":
                echo(listening, 4)
            os._exit(0)
        if when != "for a child":
            os.waitpid(server, 0)
            thread = threading.Thread(target=echo, args=(listening, 4))
            thread.start()
        for way in RDMA, TCP, RDMA, TCP:
            print(when, way, ask(way, address, port))
        if when == "for a child":
            os.waitpid(server, 0)
        else:
            thread.join()
        port += 1


def few_ports(address, _address6, _silent, port):
    """The kernel has few ports to give away, all of which differ by multiples of 1,024."""
    names = "ipv4/ip_local_port_range", "ipv4/ip_local_reserved_ports"
    before = [open("/proc/sys/net/" + name, encoding="ascii").read() for name in names]
    free = range(20000, 61000, 1024)
    setting(names[0], "20000 60999")
    setting(names[1], ",".join(f"{first + 1}-{first + 1023}" for first in free))
    listening, ends = listener(address, port), []
    for number in range(32):
        client = connect(RDMA, address, port)
        ends.append((client, listening.accept()[0]))
        print(number, *exchange(*ends[-1]))
    for name, value in zip(names, before):
        setting(name, value.strip() or "\n")


def accept_order(address, _address6, _silent, port):
    """Clients are accepted in the order in which they have arrived, each before the next one connects."""
    listening = listener(address, port)
    ways = [RDMA, TCP, RDMA, RDMA, TCP, TCP, RDMA, TCP] * 4
    clients = []
    for number, way in enumerate(ways):
        clients.append(connect(way, address, port))
        clients[-1].sendall(bytes([number]))
        until(lambda: waiting(listening) == len(clients))
    order = []
    for _ in ways:
        server = listening.accept()[0]
        order.append(server.recv(1)[0])
        server.close()
    print("accepted", *order)


def serve(listeners, way, address, port):
    client = connect(way, address, port)
    if isinstance(client, str):
        return client
    [ready] = select.select(listeners, [], [])[0]
    server, peer = ready.accept()
    own = client.getsockname()
    seen = "the client's" if (peer[0].removeprefix("::ffff:"), peer[1]) == own[:2] else f"{peer} is not {own}"
    named = "the same" if server.getpeername()[:2] == peer[:2] else server.getpeername()
    mapped = "mapped" if peer[0].startswith("::ffff:") else "not mapped"
    facts = f"listener {listeners.index(ready)}: peer's address {seen}, {mapped}, getpeername {named}"
    result = (facts, server.getsockname()[0], *exchange(client, server))
    client.close()
    server.close()
    return result


def v6only(address, address6, _silent, port):
    for number, only in enumerate((0, 1)):
        listening = listener("::", port + number, (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only))
        for way in RDMA, TCP:
            for to in address, address6:
                print("IPV6_V6ONLY", only, way, to, serve([listening], way, to, port + number))
        listening.close()
    both = [listener("0.0.0.0", port + 2), listener("::", port + 2, (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1))]
    for way in RDMA, TCP:
        for to in address, address6:
            print("both", way, to, serve(both, way, to, port + 2))


def setting(name, value):
    with open("/proc/sys/net/" + name, "w", encoding="ascii") as file:
        file.write(value)


def foreign_address(address, address6, _silent, port):
    """Sockets are bound to an address that this host does not have yet, as those of virtual addresses."""
    four, six = address.rsplit(".", 1)[0] + ".20", address6.rsplit(":", 1)[0] + ":20"
    permissions = [("IP_FREEBIND", four, (socket.IPPROTO_IP, 15, 1)), ("IP_TRANSPARENT", four, (socket.IPPROTO_IP, 19, 1)),
                   ("ipv4/ip_nonlocal_bind", four, None), ("IPV6_FREEBIND", six, (socket.IPPROTO_IPV6, 78, 1)),
                   ("IPV6_TRANSPARENT", six, (socket.IPPROTO_IPV6, 75, 1)), ("ipv6/ip_nonlocal_bind", six, None)]
    for number, (name, prefix, option) in enumerate(permissions):
        # Of each address the library remembers whether rsockets can use it.
        own = prefix + str(number)
        try:
            listener(own, port)
        except OSError as error:
            print(name, "without:", errno.errorcode[error.errno])
        if option is None:
            setting(name, "1")
        options = [option] if option else []
        listening = listener(own, port, *options)
        print(name, "any port:", listener(own, 0, *options).getsockname()[1] > 0)
        client = listener(own, 0, *options, listen=False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100000))
        here = address if prefix == four else address6
        other = listener(here, port + 1)
        print(name, "connect:", errno.errorcode[client.connect_ex((here, port + 1))])
        print(name, "another client:", serve([other], RDMA, here, port + 1)[1:])
        if option is None:
            setting(name, "0")
        device = subprocess.run(["ip", "-o", "addr", "show", "to", here], capture_output=True, check=True).stdout.split()[1]
        change = [own + ("/32" if prefix == four else "/128"), "dev", device, *["nodad"][:prefix == six]]
        subprocess.run(["ip", "addr", "add", *change], check=True)
        for way in RDMA, TCP:
            print(name, way, serve([listening], way, own, port)[1:])
        subprocess.run(["ip", "addr", "del", *change[:3]], check=True)
        for used in listening, client, other:
            used.close()
        port += 2


def send_timeout(_address, _address6, silent, port):
    """SO_SNDTIMEO bounds connect(2), which goes on in the background. The other limits of the case are 60 s and more."""
    for _ in range(2):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 400000))
        for _ in range(2):
            start = time.monotonic()
            error = client.connect_ex((silent, port))
            took = time.monotonic() - start
            print("connect:", errno.errorcode[error], "early" if took < 0.4 else "late" if took > 30 else "in time")
        print("SO_SNDTIMEO:", *struct.unpack("ll", client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)))
        client.close()


def program_sends(client, server):
    """A program sends by the client's number. What has arrived, by then it has the connection."""
    # Other shells have numbers of one digit.
    status = os.system(f"exec bash -c 'printf question >&{client.fileno()}'")
    return status, server.recv(100).decode()


def inheritable(address, port):
    client = socket.socket()
    client.set_inheritable(True)
    client.connect((address, port))
    return client


def reported(members, client, timeout=60):
    """What instances of epoll report of a connection."""
    events = [member.poll(timeout) for member in members]
    return [[event for number, event in some if number == client.fileno()] for some in events]


def epoll_and_programs(address, _address6, _silent, port):
    """Members of epoll instances whose connection a program gets: the parent goes on with them as before."""
    listening = listener(address, port)
    kinds = {"level": 0, "edge": select.EPOLLET, "oneshot": select.EPOLLONESHOT, "exclusive": select.EPOLLEXCLUSIVE}
    for name, kind in kinds.items():
        client = inheritable(address, port)
        server = listening.accept()[0]
        # With EPOLLEXCLUSIVE an event may be reported by one of them only.
        members = [select.epoll() for _ in range(1 if name == "exclusive" else 2)]
        for member in members:
            member.register(client, select.EPOLLIN | kind)
        print(name, *program_sends(client, server), reported(members, client, 0))
        for _ in range(3):
            server.sendall(b"answer")
            print(name, reported(members, client), client.recv(100).decode(), reported(members, client, 0))
            client.sendall(b"next")
            print(name, server.recv(100).decode())
            if kind == select.EPOLLONESHOT:
                for member in members:
                    member.modify(client, select.EPOLLIN | kind)
        if kind != select.EPOLLEXCLUSIVE:
            members[0].modify(client, select.EPOLLIN | select.EPOLLOUT)
            print(name, reported(members[:1], client))
            members[0].modify(client, select.EPOLLIN)
            members[1].unregister(client)
        server.close()
        print(name, reported(members[:1], client), client.recv(100), reported(members[1:], client, 0))
        client.close()


def poll_for(*connections):
    waits = select.poll()
    for connection in connections:
        waits.register(connection, select.POLLIN)
    return [events for _, events in waits.poll()]


def waits_and_programs(address, _address6, _silent, port):
    """Threads that wait for a connection while a program gets it."""
    listening = listener(address, port)
    quiet = socket.socketpair()
    ways = {
        "poll": poll_for,
        "poll of two": lambda client: poll_for(client, quiet[0]),
        "select": lambda client: len(select.select([client, quiet[0]], [], [])[0]),
        "recv": lambda client: client.recv(6, socket.MSG_PEEK),
    }
    for name, way in ways.items():
        for _ in range(3):
            client, server = inheritable(address, port), listening.accept()[0]
            results = []
            thread = threading.Thread(target=lambda: results.extend([way(client), client.recv(100)]))
            thread.start()
            stat = f"/proc/self/task/{thread.native_id}/stat"
            until(lambda: open(stat, encoding="ascii").read().rpartition(")")[2].split()[0] == "S")
            print(name, *program_sends(client, server))
            server.sendall(b"answer")
            thread.join()
            print(name, results)
            client.close()
            server.close()


def epoll_and_kept_connection(address, _address6, _silent, port):
    """Programs that run while a connection is a member, but do not use it."""
    listening = listener(address, port)
    client = inheritable(address, port)
    server = listening.accept()[0]
    member = select.epoll()
    member.register(client, select.EPOLLIN)
    for number in range(5):
        print("status", os.system("exit 3"))
        server.sendall(b"x" * number + b"y")
        print(reported([member], client), client.recv(100))
    client.set_inheritable(False)
    server.sendall(b"x")
    print(reported([member], client), client.recv(100))
    server.shutdown(socket.SHUT_WR)
    print(reported([member], client), client.recv(100))


def many_listeners(address, _address6, _silent, _port):
    """Those beyond the most that a process has by RDMA are TCP's."""
    listeners = [listener(address, 0) for _ in range(66)]
    print({exchange(connect(RDMA, *one.getsockname()), one.accept()[0]) for one in listeners})


def many_attempts(_address, _address6, silent, _port):
    clients = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(260)]
    print({errno.errorcode[client.connect_ex((silent, 7))] for client in clients})


def few_descriptors(address, _address6, _silent, port, limits=(150, 4000), least=90):
    """Connections until there is no descriptor for another one: none of them is lost."""
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    listening, pairs, refused = listener(address, port), [], ""
    while not refused:
        try:
            client = connect(RDMA, address, port)
            pairs.append((client, listening.accept()[0]))
        except OSError as error:
            refused = errno.errorcode[error.errno]
    print(refused, resource.getrlimit(resource.RLIMIT_NOFILE), {works(*both) for both in pairs})
    # Where the library takes numbers of the program's it takes a quarter.
    print(len(pairs) if limits[0] < limits[1] else len(pairs) > least)


def descriptors_at_the_limit(address, address6, silent, port):
    few_descriptors(address, address6, silent, port, (300, 300))


def descriptors_of_a_small_process(address, address6, silent, port):
    few_descriptors(address, address6, silent, port, (64, 64), 18)


def listener_made_when_full(address, _address6, _silent, port):
    """A listener that is made while there is no room gets RDMA when there is."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    listening = listener(address, port)
    pairs = [pair(listening, address, port) for _ in range(30)]
    late = listener(address, port + 1)
    print(works(*pair(late, address, port + 1)))
    for both in pairs:
        for end in both:
            end.close()
    for _ in range(40):
        print(exchange(*pair(late, address, port + 1)))
        time.sleep(0.05)


def served_when_full(address, _address6, _silent, port):
    """A server with few descriptors takes clients by RDMA until there are too many: none is lost in between."""
    for round_port in range(port, port + 10):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (220, 220))
                listening, held = listener(address, round_port), []
                os.write(writing, b"x")
                for _ in range(40):
                    held.append(listening.accept()[0])
                    held[-1].sendall(held[-1].recv(4))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        held = [connect(RDMA, address, round_port) for _ in range(40)]
        for client in held:
            client.sendall(b"data")
        print({client.recv(4) for client in held}, os.waitpid(pid, 0)[1])


def stale_members(address, _address6, _silent, port):
    """An instance has other files under the number of the socket that connects, since there are copies of them."""
    listening, libc = listener(address, port), ctypes.CDLL(None)
    for waits in True, False:
        member, kept = select.epoll(), []
        for data in range(12):
            ends = socket.socketpair()
            kept += [ends[1], ends[0].dup()]
            event = struct.pack("=IQ", select.EPOLLIN, data)
            assert libc.epoll_ctl(member.fileno(), 1, ends[0].fileno(), event) == 0
            number = ends[0].fileno()
            ends[0].close()
        client = socket.socket()
        assert client.fileno() == number
        client.setblocking(waits)
        event = struct.pack("=IQ", select.EPOLLOUT, 99)
        libc.epoll_ctl(member.fileno(), 1, number, event)
        client.connect_ex((address, port))
        server = listening.accept()[0]
        print(waits, member.poll(30))
        assert libc.epoll_ctl(member.fileno(), 3, number, struct.pack("=IQ", select.EPOLLIN, 100)) == 0
        server.sendall(b"x")
        print(waits, member.poll(30))
        client.close()
        server.close()


def ring(address, _address6, _silent, port):
    """The process has an instance of io_uring."""
    libc = ctypes.CDLL(None)
    if libc.syscall(425, 8, ctypes.create_string_buffer(120)) < 0:
        sys.exit("no io_uring")
    listening = listener(address, port)
    for _ in range(2):
        client = connect(RDMA, address, port)
        print(exchange(client, listening.accept()[0]))


def direct_calls(address, _address6, _silent, port):
    """The server writes past the library."""
    listening, libc = listener(address, port), ctypes.CDLL(None)
    client = connect(RDMA, address, port)
    server = listening.accept()[0]
    print(libc.syscall(1, server.fileno(), b"greeting", 8), client.recv(100))
    client.sendall(b"question")
    print(server.recv(100))


def raw_clone(address, _address6, _silent, port):
    """The child serves the connection; its parent closes it."""
    listening, libc = listener(address, port), ctypes.PyDLL(None)
    for _ in range(2):
        client = connect(RDMA, address, port)
        server = listening.accept()[0]
        child = libc.syscall(56, signal.SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            server.sendall(server.recv(100)[::-1])
            os._exit(0)
        server.close()
        client.sendall(b"forwards")
        print(client.recv(100), client.recv(100), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def as_tcp(address, _address6, _silent, port):
    """Calls whose results TCP's sockets have and rsockets do not."""
    listening = listener(address, port)
    client, server = connect(RDMA, address, port), listening.accept()[0]
    client.sendall(b"unread")
    server.recv(1)
    server.close()
    print("closed with unread data", failure(client.recv, 1))
    client, server = connect(RDMA, address, port), listening.accept()[0]
    queue = socket.MSG_ERRQUEUE
    print("error queue", failure(client.recv, 1, queue), failure(client.recvmsg, 1, 1, queue))
    print("buffers", failure(client.sendmsg, [b"x"] * 1025), failure(os.writev, client.fileno(), [b"x"] * 1025))
    client, server = connect(RDMA, address, port), listening.accept()[0]
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 6)
    client.sendall(b"abc")
    print("low water", select.select([server], [], [], 0.3)[0])
    client.sendall(b"def")
    print(len(select.select([server], [], [], 30)[0]), server.recv(100))
    client, server = connect(RDMA, address, port), listening.accept()[0]
    got = []
    signal.signal(signal.SIGIO, lambda *_: got.append(1))
    fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(server, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    client.sendall(b"x")
    until(lambda: got)
    print("SIGIO", server.recv(100))
    client, server = connect(RDMA, address, port), listening.accept()[0]
    waits = select.poll()
    waits.register(server, select.POLLIN | select.POLLRDHUP)
    client.shutdown(socket.SHUT_WR)
    print("half closed", waits.poll(30_000)[0][1], server.recv(1), waits.poll(0)[0][1])
    server.sendall(b"more")
    print(client.recv(10))
    client, server = connect(RDMA, address, port), listening.accept()[0]
    member = select.epoll()
    member.register(server, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
    client.shutdown(socket.SHUT_WR)
    print("edge", member.poll(30)[0][1], member.poll(0.3))


def failure(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def pair(listening, address, port):
    return inheritable(address, port), listening.accept()[0]


def works(client, server):
    client.sendall(b"question")
    server.sendall(b"answer")
    return server.recv(100).decode(), client.recv(100).decode()


def popen_with_many(address, _address6, _silent, port):
    """The C library's popen and pclose beside many connections that the program inherits and does not use."""
    listening = listener(address, port)
    pairs = [pair(listening, address, port) for _ in range(40)]
    libc = ctypes.CDLL(None)
    libc.popen.restype = ctypes.c_void_p
    for number in range(5):
        stream = libc.popen(f"exit {number}".encode(), b"r")
        print("status", os.waitstatus_to_exitcode(libc.pclose(ctypes.c_void_p(stream))))
        print({works(*both) for both in pairs})
    for client, server in pairs:
        client.close()
        print(server.recv(100))
        server.close()
    print("lowest number", os.dup(0))


def programs_of_threads(address, _address6, _silent, port):
    """Threads that execute programs at the same time, beside connections that have no other socket in the host yet."""
    listening = listener(address, port)
    for _ in range(10):
        pairs = [pair(listening, address, port) for _ in range(4)]
        statuses = []
        threads = [threading.Thread(target=lambda: statuses.append(os.system("exit 0"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(statuses, [program_sends(*both) for both in pairs], [works(*both) for both in pairs])
        for both in pairs:
            for end in both:
                end.close()


def failed_programs(address, _address6, _silent, port):
    """Programs that cannot be executed: the connections stay what they were."""
    listening = listener(address, port)
    client, server = pair(listening, address, port)
    for command in ["/nonexistent"], ["/etc/passwd"]:
        try:
            subprocess.run(command, stdin=client, pass_fds=[client.fileno()], check=False)
        except OSError as error:
            print(errno.errorcode[error.errno])
        print(works(client, server))
        try:
            os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, client.fileno(), 0)])
        except OSError as error:
            print(errno.errorcode[error.errno])
        print(works(client, server))
    pid = os.fork()
    if pid == 0:
        os.dup2(client.fileno(), 0)
        try:
            os.execv("/nonexistent", ["x"])
        finally:
            os._exit(126)
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), works(client, server))
    client.close()
    print(server.recv(100))


LEAVES_DATA = """
import socket
socket.socket(fileno=0).recv(1)
"""


def resets(address, _address6, _silent, port):
    """Ends of programs that TCP reports as a reset: with SO_LINGER, and with data that they have not received."""
    listening = listener(address, port)
    without_library = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for name in "linger", "child", "program":
        client, server = pair(listening, address, port)
        server.sendall(b"unread")
        if name == "program":
            child = subprocess.Popen([sys.executable, "-c", LEAVES_DATA], stdin=client, env=without_library)
            client.close()
            child.wait()
        else:
            pid = os.fork()
            if pid == 0:
                client.recv(1 if name == "child" else 100)
                if name == "linger":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os._exit(0)
            client.close()
            os.waitpid(pid, 0)
        try:
            print(name, server.recv(100))
        except OSError as error:
            print(name, errno.errorcode[error.errno])
        server.close()


def numbers_of_forwarded(address, _address6, _silent, port):
    """Numbers of connections that a program has used are copied over, and closed in every way."""
    listening = listener(address, port)
    libc = ctypes.CDLL(None)
    other = os.open("/dev/null", os.O_RDWR)
    ways = {
        "close": lambda fd: os.close(fd),
        "dup2": lambda fd: os.dup2(other, fd),
        "close_range": lambda fd: libc.close_range(fd, fd, 0),
        "closerange": lambda fd: os.closerange(fd, fd + 1),
    }
    for name, close in ways.items():
        for used in False, True:
            client, server = pair(listening, address, port)
            if used:
                print(name, *program_sends(client, server))
            else:
                print(name, os.system("exit 0"))
            copy = client.dup()
            fd = client.detach()
            close(fd)
            print(name, works(copy, server))
            close(copy.detach())
            print(name, server.recv(100))
            server.close()


def programs_of_children(address, _address6, _silent, port):
    """A connection that several programs have, after its parent has closed it."""
    listening = listener(address, port)
    client, server = pair(listening, address, port)
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os.dup2(client.fileno(), 1)
            os.closerange(3, 1000)
            os.execv("/bin/sh", ["sh", "-c", "head -c 70000 /dev/zero"])
        children.append(pid)
    client.close()
    for pid in children:
        print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    total = 0
    while data := server.recv(65536):
        total += len(data)
    print("received", total)
    private = connect(RDMA, address, port)
    server = listening.accept()[0]
    print("status", os.system(f"test -e /proc/self/fd/{private.fileno()}"), works(private, server))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:5], int(sys.argv[5]))
