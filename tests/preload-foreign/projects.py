"""Runs the socket tests of other projects with librspreload and without it."""

import collections
import fnmatch
import functools
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
from harness import TOP, UNAVAILABLE, choose, run_lab

LAB_SECONDS = 5400
WAYS = ["auto", "rdma"]
REPEATS = 2
SUITES = ["cpython", "libuv", "node", "gnulib", "glibc", "libevent", "perl"]
# Of CPython; of asyncio's all but those for Windows.
MODULES = ["test_socket", "test_select", "test_poll", "test_epoll", "test_selectors", "test_socketserver", "test_ssl",
           "test_httplib", "test_httpservers", "test_asyncore", "test_asynchat", "test_ftplib", "test_telnetlib",
           "test_poplib", "test_imaplib", "test_smtplib", "test_xmlrpc"]
ASYNCIO = ["base_events", "buffered_proto", "context", "events", "futures", "futures2", "locks", "pep492", "proactor_events",
           "protocols", "queues", "runners", "selector_events", "sendfile", "server", "sock_lowlevel", "ssl", "sslproto",
           "streams", "subprocess", "taskgroups", "tasks", "threads", "timeouts", "transports", "unix_events", "waitfor"]
# Of Perl, as patterns.
PERL = ["t/*/*.t", "cpan/IO-Socket-IP/t/[0-3]*.t", "cpan/Socket/t/*.t", "dist/IO/t/cachepropagate-*.t", "dist/IO/t/IO.t",
        "dist/IO/t/io_[dmpsux]*.t"]
PERL_WITHOUT = {"00use.t", "31nonblocking-connect-internet.t", "io_dir.t", "io_utf8.t", "io_utf8argv.t"}
# libuv's tests by the beginnings of their names.
LIBUV = ["active", "callback_stack", "connect", "delayed_accept", "emfile", "fork_socketpair", "getsockname", "ipc_",
         "multiple_listen", "not_", "poll_", "readable_on_eof", "shutdown_", "socket_buffer_size", "spawn_tcp_server",
         "tcp", "udp", "watcher_cross_stop"]


class Suite:
    """Where the tests of a project are, and which there are. `limit`: seconds for each."""

    def __init__(self, limit, folder, names):
        self.limit, self.folder, self.names = limit, folder, names

    def unit(self, name, test):
        """Returns the line's name for a test: CPython's modules have one each."""
        found = re.search(r"\btest\.(test_asyncio\.test_\w+|test_\w+)", test)
        return f"{name}: {found[1]}" if found and name == "cpython" else name


@functools.cache
def folder_of(script, *kind):
    """Returns the folder that a script unpacks packages to, or None if they are not available."""
    done = subprocess.run([HERE / script, "path", *kind], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, UNAVAILABLE):
        sys.exit(1)
    return pathlib.Path(done.stdout.strip()) if done.returncode == 0 else None


def build(name, source):
    """Builds a project's tests, with the device's addresses in place of the loopback interface's. Returns their folder."""
    to, script = TOP / f"target/preload-foreign/{name}", HERE / f"build-{name}"
    built = to / "built"
    if not built.exists() or built.stat().st_mtime < script.stat().st_mtime:
        subprocess.run([script, source, to], check=True, stdout=subprocess.DEVNULL)
        built.touch()
    return to


def libuv_names(folder):
    lines = subprocess.run(["env", "UV_RUN_AS_ROOT=1", folder / "uv_run_tests_a", "--list"], check=True,
                           stdout=subprocess.PIPE, text=True)
    names = [line.split()[0] for line in lines.stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(tuple(LIBUV))]


def suite_cpython():
    packages = folder_of("../preload-programs/packages")
    names = MODULES + [f"test_asyncio.test_{one}" for one in ASYNCIO]
    return packages and Suite(90, packages / "usr/lib/python3.11/test", names)


def suite_libuv():
    sources = folder_of("sources")
    folder = sources and build("libuv", sources / "libuv1")
    return folder and Suite(100, folder, libuv_names(folder))


def suite_node():
    sources = folder_of("sources")
    return sources and Suite(120, sources, [path.stem for path in sorted((sources / "node/test/parallel").glob("test-net-*.js"))])


def suite_of_programs(name):
    """Of a project whose build lists the names of its tests."""
    sources = folder_of("sources", "calls")
    folder = sources and build(name, sources / name)
    return folder and Suite(100, folder, [line.split()[0] for line in (folder / "tests").read_text().splitlines()])


def suite_perl():
    sources = folder_of("sources", "calls")
    top = sources and sources / "perl"
    return top and Suite(100, top, [str(path.relative_to(top)) for pattern in PERL for path in sorted(top.glob(pattern))
                                    if path.name not in PERL_WITHOUT])


def suites(wanted):
    """Returns the suites that are available, by name, and the names of the others."""
    makers = {"cpython": suite_cpython, "libuv": suite_libuv, "node": suite_node, "perl": suite_perl}
    found = {name: makers[name]() if name in makers else suite_of_programs(name) for name in ([wanted] if wanted else SUITES)}
    return {name: suite for name, suite in found.items() if suite}, [name for name, suite in found.items() if not suite]


def read_results(path):
    """Returns {test: state}. The worst state counts if there are several."""
    states = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        state, _, test = line.partition(" ")
        if states.get(test) != "fail":
            states[test] = state
    return states


class Results:
    """The results of the tests of a suite, in all ways."""

    def __init__(self, name, suite, folder):
        self.name, self.suite, self.folder = name, suite, folder
        self.states, self.packets = {}, collections.Counter()

    def run(self, way, names, label):
        """Runs tests in a lab of their own. Returns their states."""
        out = self.folder / f"{self.name}.{way}{label}"
        for file in ["results", "packets"]:
            (out / file).unlink(missing_ok=True)
        status = run_lab([HERE / "guest", self.name, way, self.suite.limit, self.suite.folder, *names], lib="reference",
                         time_limit=LAB_SECONDS, mem="1500M", out=out, log=self.folder / "lab.log")
        packets = out / "packets"
        self.packets[way] += int(packets.read_text()) if packets.exists() else 0
        states = read_results(out / "results")
        if status or not packets.exists():
            states["the lab's end"] = "fail"
        return states

    def differing(self, way):
        plain, other = self.states["plain"], self.states[way]
        return sorted(test for test in plain.keys() | other.keys() if plain.get(test) != other.get(test))

    def repeat(self, way, exceptions):
        """Repeats the tests that differ and are not listed, without the library and with it: a difference is one that
        stays."""
        for number in range(1, REPEATS + 1):
            new = [test for test in self.differing(way) if not exceptions.reason(self.name, way, test)]
            names = sorted({name_to_run(self.name, test) for test in new} - {None})
            if not names:
                return
            for one in ["plain", way]:
                again = self.run(one, names, f".{way}.again{number}")
                again.pop("the lab's end", None)
                self.states[one] = {**self.states[one], **again}


def name_to_run(suite, test):
    """Returns what the guest is to be called with for a test, or None."""
    if suite == "perl":
        return test.partition(": ")[0] if ": " in test else None
    if suite != "cpython":
        return None if " " in test else test
    found = re.search(r"\(test\.([\w.]+)\)|^test\.([\w.]+)$", test)
    return found and (found[1] or found[2])


class Exceptions:
    """The file of differences that are known: SUITE WAY TEST REASON, the test as a pattern."""

    def __init__(self, path):
        lines = [line.split(None, 3) for line in path.read_text().splitlines() if line and not line.startswith("#")]
        self.lines, self.used = lines, set()

    def reason(self, suite, way, test):
        for number, (of, ways, pattern, reason) in enumerate(self.lines):
            if of == suite and way in ways.split(",") and fnmatch.fnmatchcase(test, pattern):
                self.used.add(number)
                return reason
        return None


def tally(states):
    number = collections.Counter(states.values())
    return f"{number['ok']} ok, {number['fail']} failed, {number['skip']} skipped"


def judge(results, way, exceptions, report, is_whole):
    """Prints a line for each unit of the suite. Of the whole suite some must have used RDMA."""
    differing, units = results.differing(way), collections.defaultdict(dict)
    for test, state in results.states[way].items():
        units[results.suite.unit(results.name, test)][test] = state
    for test in differing:
        units[results.suite.unit(results.name, test)].setdefault(test, "missing")
    for unit, states in sorted(units.items()):
        new, known = [], 0
        for test in sorted(set(states) & set(differing)):
            if exceptions.reason(results.name, way, test):
                known += 1
            else:
                new.append(f"{test}: {results.states['plain'].get(test, 'missing')}, {way} {states[test]}")
        facts = f"{tally(states)}" + (" as without" if not known else f" as without, but for {known} listed")
        report.note("FAIL" if new else "ok", f"{unit}-{way}", f"{len(new)} differ" if new else facts, new)
    if results.packets[way]:
        report.ok(f"{results.name}-{way} over RDMA", f"{results.packets[way]} packets")
    elif is_whole:
        report.fail(f"{results.name}-{way} over RDMA", "the device has sent no packet")


def rows(options):
    return [(name, test) for name, suite in suites(options.suite)[0].items() for test in suite.names]


def run(_test, options, report):
    exceptions = Exceptions(HERE / "exceptions")
    found, missing = suites(options.suite)
    for name in missing:
        report.skip(name, "the packages are not available here")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.results or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, suite in found.items():
            results = Results(name, suite, folder)
            names = choose(suite.names, options.only)
            results.states["plain"] = results.run("plain", names, "")
            for way in [options.way] if options.way else WAYS:
                results.states[way] = results.run(way, names, "")
                results.repeat(way, exceptions)
                judge(results, way, exceptions, report, options.only == "*")
