"""Runs tests of Python's own suite (names of modules or tests) and prints a line for each: ok|fail|error|skip NAME. With
RSOCKET=1 the process keeps an open rsocket (an AF_IB socket) during the tests, so that the library is in use."""
import os
import socket
import sys
import unittest

AF_IB = 27


class Lines(unittest.TestResult):
    def show(self, state, test):
        print(state, test.id(), flush=True)

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


def main():
    if os.environ.get("RSOCKET"):
        # Not a socket object of Python, which would query its address.
        import ctypes

        number = ctypes.CDLL(None, use_errno=True).socket(AF_IB, socket.SOCK_STREAM, 0)
        if number < 0 or os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
            sys.exit("no rsocket")
    result = Lines()
    unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:]).run(result)
    for test, text in result.failures + result.errors:
        print(f"== {test.id()}\n{text}", file=sys.stderr)


main()
