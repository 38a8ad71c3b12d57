"""Runs tests of Python's own suite (names of modules or tests) and prints a line for each: ok|fail|error|skip NAME. With
RSOCKET=1 the process keeps an open rsocket (an AF_IB socket) during the tests, so that the library is in use. With
LIMIT=SECONDS a test that takes longer ends the process; before each test there is a line: run NAME. DONE=FILE names
the tests that are left out, one a line."""
import faulthandler
import os
import socket
import sys
import unittest

AF_IB = 27


# Seconds, or 0.
LIMIT = int(os.environ.get("LIMIT", 0))


class Lines(unittest.TestResult):
    shown = None

    def show(self, state, test):
        self.shown = test.id()
        print(state, test.id(), flush=True)

    def startTest(self, test):
        super().startTest(test)
        if LIMIT:
            print("run", test.id(), flush=True)
            faulthandler.dump_traceback_later(LIMIT, exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        if LIMIT:
            faulthandler.cancel_dump_traceback_later()
        # Only a sub-test has failed.
        if self.shown != test.id():
            self.show("fail", test)

    def addSuccess(self, test):
        self.show("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.show("fail", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.show("error", test)

    def addSkip(self, test, reason):
        self.show("skip", test)

    def addExpectedFailure(self, test, err):
        self.show("ok", test)


def tests_of(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one)
        else:
            yield one


def without(done, suite):
    """Returns the tests that are not in `done`. Those of one class stay together."""
    return unittest.TestSuite(test for test in tests_of(suite) if test.id() not in done)


def main():
    if os.environ.get("RSOCKET"):
        # Not a socket object of Python, which would query its address.
        import ctypes

        number = ctypes.CDLL(None, use_errno=True).socket(AF_IB, socket.SOCK_STREAM, 0)
        if number < 0 or os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
            sys.exit("no rsocket")
    result, suite = Lines(), unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
    if os.environ.get("DONE"):
        with open(os.environ["DONE"], encoding="utf-8") as done:
            suite = without(set(done.read().splitlines()), suite)
    suite.run(result)
    for test, text in result.failures + result.errors:
        print(f"== {test.id()}\n{text}", file=sys.stderr)


main()
