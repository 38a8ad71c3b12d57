"""Tests of tests/suites.toml: what a suite passes to its test is right, and what a test names exists."""

import pathlib
import shlex
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness.conformance import read_programs
from harness.kinds import compare
from harness.runner import KINDS, read_tests
from harness.suites import read_suites

TESTS_C = HERE.parents[1] / "tests-c"


class Suites(unittest.TestCase):
    def test_options_are_those_of_the_test(self):
        tests = read_tests()
        for suite in read_suites():
            if suite.test:
                test, words = tests[suite.test], shlex.split(suite.options)
                if test.data["kind"] == "compare":
                    options = compare.parse_options(test, words)
                    self.assertTrue(compare.choose(read_programs(TESTS_C), options), suite.name)
                else:
                    test.parser().parse_args(words)

    def test_what_a_test_names_exists(self):
        lines = (TESTS_C / "programs.list").read_text().splitlines()
        listed = {line.split()[0] for line in lines if line and line[0] != "#"}
        for name, test in read_tests().items():
            self.assertIn(test.data["kind"], {*KINDS, "compare"}, name)
            self.assertLessEqual(set(test.data.get("programs", [])), listed, name)
            if "module" in test.data:
                self.assertTrue(test.module(), name)

    def test_every_source_belongs_to_a_program(self):
        """A C source that no row of programs.list names is not built."""
        lines = [line.split("#")[0].split() for line in (TESTS_C / "programs.list").read_text().splitlines()]
        named = {TESTS_C / f"{words[0]}.c" for words in lines if words and words[1] != "tool"}
        for words in lines:
            if words and words[1] == "tool":
                named |= {(TESTS_C / words[0]).parent / word for word in words[2:] if word.endswith(".c")}
        # The helpers are in the top folder; link/ is built by scripts/install-test.
        sources = {path for path in TESTS_C.glob("*/**/*.c") if path.parent.name != "link"}
        self.assertEqual(sources ^ named, set())


if __name__ == "__main__":
    unittest.main()
