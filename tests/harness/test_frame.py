"""Tests of the C frame of cases (tests-c/cases.h): which cases pass, and that none is lost. Needs a compiler, but
no device."""

import pathlib
import re
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import build_c
from harness.conformance import judge_cases
from harness.results import Results

PASS = {"passes", "looks_at_an_earlier_errno"}
FAIL = {
    "shows_errno": "line N: getppid() == 0 (errno EBADF)",
    "wrong_errno": "line N: close(-1) == -1 with EAGAIN (errno EBADF)",
    "stale_errno": "line N: -1 == -1 with EAGAIN (errno 0)",
    "exits_with_0": "the case ended its process",
    "exits_at_once_with_0": "the case ended its process",
    "exits_with_3": "exit status 3",
    "crashes": "KILL",
    "hangs": "hangs",
    "fails_without_stdout": 'line N: !"possible" (errno 0)',
    "child_fails": 'line N: !"in the child" (errno 0)',
    "child_returns": "the case ended its process",
    "thread_fails": 'line N: !"in the thread" (errno 0)',
}


class Frame(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = build_c("tools/selftest") / "tools/selftest"

    def lines(self, *arguments):
        done = subprocess.run([self.program, *arguments], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        return done.stdout.splitlines()

    def test_each_case_has_its_verdict(self):
        results = Results(self.lines("rxe"))
        self.assertEqual(set(results.names["PASS"]), PASS)
        failed = {name: re.sub(r"line \d+", "line N", why) for name, why in results.names["FAIL"].items()}
        self.assertEqual(failed, FAIL)
        self.assertEqual(results.names["LEFT"], {"not_here": "on_siw()"})

    def test_a_case_that_control_does_not_reach_is_missed(self):
        results = Results(self.lines("rxe"))
        self.assertEqual(results.declared, len(PASS) + len(FAIL) + 2)
        self.assertEqual(results.trouble(),
                         f"results of {len(PASS) + len(FAIL) + 1} cases, {results.declared} are declared")

    def test_the_judge_sees_what_failed(self):
        verdict = judge_cases((self.lines("rxe"), 0, ""))
        self.assertEqual(verdict.state, "FAIL")
        self.assertEqual(sum(line.startswith("FAIL ") for line in verdict.detail), len(FAIL))

    def test_a_preparation_that_failed_is_seen(self):
        self.assertEqual(Results(self.lines("rxe", "setup")).unprepared, ["[] setup failed: close(-1) == 0: EBADF"])


if __name__ == "__main__":
    unittest.main()
