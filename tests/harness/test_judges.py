"""Tests of the judges: each way in which a result could be lost has to fail."""

import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import Report
from harness.conformance import (Difference, judge_alone, judge_cases, judge_pair, read_differences, read_hangs,
                                 read_programs)
from harness.processes import lost, observe

END = "[end] complete"
TESTS_C = HERE.parents[1] / "tests-c"


def cases(*lines, declared=None, status=0, end=True):
    """A run of a program of cases."""
    tail = [] if declared is None else [f"CASES {declared}"]
    return [*lines, *tail, *([END] if end else [])], status, ""


def run(*lines, status=0, end=True):
    """A run of a compared program."""
    return [*lines, *([END] if end else [])], status, ""


class JudgeCases(unittest.TestCase):
    def fails(self, outcome, facts):
        verdict = judge_cases(outcome)
        self.assertEqual((verdict.state, verdict.facts), ("FAIL", facts))

    def test_ok(self):
        verdict = judge_cases(cases("PASS a", "PASS b: 3 rounds", "     detail", "LEFT c: on_siw()", declared=3))
        self.assertEqual((verdict.state, verdict.facts), ("ok", "2 cases"))

    def test_the_end_alone(self):
        self.fails(cases(), "declares no number of cases")
        self.fails(cases(declared=0), "no case ran")

    def test_nothing_printed(self):
        self.fails(cases(end=False), "ended early")
        self.fails(([], None, ""), "did not run")

    def test_a_lost_case(self):
        self.fails(cases("PASS a", declared=2), "results of 1 cases, 2 are declared")

    def test_one_case_more_than_declared(self):
        self.fails(cases("PASS a", "PASS b", declared=1), "results of 2 cases, 1 are declared")

    def test_a_case_that_ran_twice_stands_for_no_other(self):
        self.fails(cases("PASS a", "PASS a", declared=2), "results of 1 cases, 2 are declared")

    def test_cut_short_after_the_last_case(self):
        self.fails(cases("PASS a", declared=1, end=False), "ended early")

    def test_output_after_the_end(self):
        lines, status, errors = cases("PASS a", declared=1)
        self.fails((lines + ["PASS b"], status, errors), "ended early")

    def test_two_runs_in_one(self):
        lines, _, _ = cases("PASS a", declared=1)
        self.fails((lines * 2, 0, ""), "results of 1 cases, -1 are declared")

    def test_all_left_out(self):
        self.fails(cases("LEFT a: not chosen", "LEFT b: not chosen", declared=2), "no case ran")

    def test_failed_case(self):
        self.fails(cases("FAIL a: hangs", "PASS b", declared=2), "1 cases")

    def test_failed_case_of_a_truncated_list(self):
        self.fails(cases("FAIL a: hangs", declared=2), "results of 1 cases, 2 are declared")

    def test_status(self):
        self.fails(cases("PASS a", declared=1, status=3), "exit status 3")
        self.fails(cases("PASS a", declared=1, status=137), "hung (killed)")

    def test_preparation(self):
        self.fails(cases("PASS a", "[] setup failed: rlisten(fd, 1): EINVAL", declared=1),
                   "[] setup failed: rlisten(fd, 1): EINVAL")

    def test_skipped_program(self):
        verdict = judge_cases((["SKIP no datagrams"], 0, ""))
        self.assertEqual((verdict.state, verdict.facts), ("skip", "no datagrams"))

    def test_a_skip_does_not_hide_a_crash(self):
        self.fails((["SKIP no datagrams"], 139, ""), "exit status 139")

    def test_a_skip_does_not_hide_what_comes_after_it(self):
        self.fails((["SKIP no datagrams", "PASS a"], 0, ""), "ended early")
        self.fails((["PASS a", "SKIP no datagrams"], 0, ""), "ended early")

    def test_skipped_cases_are_named(self):
        verdict = judge_cases(cases("PASS a", "SKIP b: needs root", declared=2))
        self.assertEqual((verdict.state, verdict.skipped), ("ok", [("b", "needs root")]))

    def test_all_cases_skipped(self):
        self.assertEqual(judge_cases(cases("SKIP b: needs root", declared=1)).state, "skip")


class JudgePair(unittest.TestCase):
    def fails(self, first, second, facts, **more):
        verdict = judge_pair(first, second, more.pop("entries", []), **more)
        self.assertEqual((verdict.state, verdict.facts), ("FAIL", facts))

    def test_ok(self):
        verdict = judge_pair(run("[a] 1"), run("[a] 1"), [])
        self.assertEqual((verdict.state, verdict.facts), ("ok", "2 lines"))

    def test_difference(self):
        self.fails(run("[a] 1"), run("[a] 2"), "2 differing lines")
        self.fails(run("[a] 1", "[a] 2"), run("[a] 1"), "1 differing lines")

    def test_both_print_nothing(self):
        self.fails(run(end=False), run(end=False), "ended early; the reference ended early")

    def test_setup_failed_on_both_sides(self):
        line = "[a] setup failed: !rdma_listen(id, 8): EADDRINUSE"
        self.fails(run(line), run(line), "a preparation failed; the reference a preparation failed")

    def test_setup_event_failed_on_both_sides(self):
        line = "[a] setup: RDMA_CM_EVENT_UNREACHABLE status -ETIMEDOUT id client listen NULL"
        self.fails(run(line), run(line), "a preparation failed; the reference a preparation failed")

    def test_setup_failed_on_one_side(self):
        line = "[a] setup failed: !rdma_listen(id, 8): EADDRINUSE"
        self.fails(run(line), run("[a] 1"), "the reference a preparation failed")
        self.fails(run("[a] 1"), run(line), "a preparation failed")

    def test_the_reference_hangs(self):
        hung = run("[a] 1", status=137, end=False)
        self.fails(hung, run("[a] 1"), "the reference hung (killed)")
        self.assertEqual(judge_pair(hung, run("[a] 1"), [], known_hang="loses a wake-up"),
                         ("skip", "the reference hung: loses a wake-up", [], ()))

    def test_both_hang(self):
        hung = run("[a] 1", status=137, end=False)
        self.fails(hung, hung, "hung (killed); the reference hung (killed)", known_hang="loses a wake-up")

    def test_the_reference_hangs_and_ours_is_not_complete(self):
        hung = run("[a] 1", status=137, end=False)
        for ours, why in [(run("[a] 1", end=False), "ended early"), (run("[a] 1", status=134), "exit status 134"),
                          ((["SKIP no"], 0, ""), "no")]:
            self.fails(hung, ours, f"{why}; the reference hung (killed)", known_hang="loses a wake-up")

    def test_the_reference_crashes(self):
        crashed = run("[a] 1", status=139)
        self.fails(crashed, run("[a] 1"), "the reference exit status 139", known_hang="loses a wake-up")
        self.fails(crashed, crashed, "exit status 139; the reference exit status 139")

    def test_the_reference_did_not_run(self):
        self.fails(([], None, ""), run("[a] 1"), "the reference did not run")

    def test_the_reference_skips(self):
        skipped = (["SKIP no RDMACM_1.4"], 0, "")
        self.assertEqual(judge_pair(skipped, run("[a] 1"), []), ("skip", "no RDMACM_1.4", [], ()))
        self.assertEqual(judge_pair(skipped, skipped, []).state, "skip")
        self.fails(skipped, run("[a] 1", status=137, end=False), "hung (killed); the reference skips it: no RDMACM_1.4")
        self.fails(skipped, run("[a] 1", end=False), "ended early; the reference skips it: no RDMACM_1.4")
        self.fails(skipped, run("[a] setup failed: x: EINVAL"),
                   "a preparation failed; the reference skips it: no RDMACM_1.4")
        self.fails((["SKIP no RDMACM_1.4"], 139, ""), run("[a] 1"), "the reference exit status 139")

    def test_only_ours_skips(self):
        self.fails(run("[a] 1"), (["SKIP no"], 0, ""), "no")

    def test_listed_difference(self):
        def entry():
            return Difference({"id": ["x"]}, ["- [a] 1", "+ [a] 2"])
        self.assertEqual(judge_pair(run("[a] 1"), run("[a] 2"), [entry()]).state, "ok")
        self.fails(run("[a] 1"), run("[a] 1"), "listed differences no longer occur: x: [a] 1", entries=[entry()])


class JudgeAlone(unittest.TestCase):
    def test_verdicts(self):
        self.assertEqual(judge_alone(run("[a] 1")).state, "ok")
        self.assertEqual(judge_alone((["SKIP no"], 0, "")).state, "skip")
        self.assertEqual(judge_alone(run("[a] 1", end=False)).state, "FAIL")
        self.assertEqual(judge_alone(run("[a] setup failed: x: EINVAL")).state, "FAIL")


class Lab:
    """In place of a lab's process."""

    def __init__(self, *lines, status=0):
        self.stdout, self.returncode = [line + "\n" for line in lines], status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Relay(unittest.TestCase):
    def relayed(self, method, lab, **more):
        """Returns the report's numbers (ok, FAIL, skip), the lines that it printed, and its exit status."""
        report, output = Report(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            getattr(report, method)("rxe", lab, **more)
            status = report.finish()
        return tuple(report.number.values()), output.getvalue().splitlines(), status

    def program(self, *lines, status=0):
        return self.relayed("relay_program", Lab(*lines, status=status))

    def lab(self, *lines, status=0, **more):
        return self.relayed("relay_lab", Lab(*lines, status=status), **more)

    def test_program(self):
        numbers, lines, status = self.program("PASS a", "     detail", "SKIP b: needs root", "LEFT c: not chosen",
                                              "CASES 3", END)
        self.assertEqual((numbers, status), ((1, 0, 1), 0))
        self.assertEqual(lines[:3], ["ok   rxe-a", "          detail", "skip rxe-b: needs root"])

    def test_program_that_prints_nothing(self):
        self.assertEqual(self.program()[::2], ((0, 1, 0), 1))

    def test_program_with_the_end_alone(self):
        self.assertEqual(self.program(END)[::2], ((0, 1, 0), 1))
        self.assertEqual(self.program("CASES 0", END)[::2], ((0, 1, 0), 1))

    def test_program_with_a_lost_case(self):
        self.assertEqual(self.program("PASS a", "CASES 2", END)[::2], ((1, 1, 0), 1))

    def test_program_cut_short_after_the_last_case(self):
        self.assertEqual(self.program("PASS a", "CASES 1")[::2], ((1, 1, 0), 1))

    def test_program_whose_status_is_bad(self):
        self.assertEqual(self.program("PASS a", "CASES 1", END, status=139)[::2], ((1, 1, 0), 1))

    def test_program_of_which_nothing_was_chosen(self):
        self.assertEqual(self.program("LEFT a: not chosen", "CASES 1", END)[::2], ((0, 1, 0), 1))

    def test_program_whose_preparation_failed(self):
        self.assertEqual(self.program("PASS a", "[] setup failed: x: EINVAL", "CASES 1", END)[::2], ((1, 1, 0), 1))

    def test_program_without_a_lab(self):
        self.assertEqual(self.program(status=77)[0], (0, 0, 1))

    def test_lab(self):
        self.assertEqual(self.lab("ok   a", "skip b: why", "all ran")[::2], ((1, 0, 1), 0))

    def test_lab_without_a_case(self):
        self.assertEqual(self.lab("all ran")[::2], ((0, 1, 0), 1))
        self.assertEqual(self.lab()[::2], ((0, 1, 0), 1))

    def test_lab_that_does_not_end(self):
        self.assertEqual(self.lab("ok   a")[::2], ((1, 1, 0), 1))
        self.assertEqual(self.lab("all ran", "ok   a")[::2], ((1, 1, 0), 1))

    def test_lab_with_a_truncated_list(self):
        self.assertEqual(self.lab("ok   a", "all ran", number=2)[::2], ((1, 1, 0), 1))
        self.assertEqual(self.lab("ok   a", "ok   b", "all ran", number=2)[::2], ((2, 0, 0), 0))

    def test_lab_that_counts_otherwise(self):
        self.assertEqual(self.lab("ok   a", "2 passed, 0 failed, 0 skipped", "all ran")[::2], ((1, 1, 0), 1))
        self.assertEqual(self.lab("ok   a", "1 passed, 0 failed, 0 skipped", "all ran")[::2], ((1, 0, 0), 0))

    def test_lab_whose_status_is_bad(self):
        self.assertEqual(self.lab("ok   a", "all ran", status=124)[::2], ((1, 1, 0), 1))

    def test_lab_that_failed_with_all_results(self):
        for status, failures, available in [(0, 0, True), (1, 0, True), (77, 0, False), (124, 1, True), (125, 1, True)]:
            report = Report()
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(report.lab_ended("lab rxe", status), available)
            self.assertEqual(report.number["FAIL"], failures)

    def test_repetitions_are_bounded(self):
        for again, failures in [(3, 0), (4, 1)]:
            report = Report()
            with contextlib.redirect_stdout(io.StringIO()):
                report.bound_repetitions("siw-repetitions", ["120"] * 9 + ["130 (tried again)"] * again)
            self.assertEqual(report.number["FAIL"], failures)

    def test_nothing_ran(self):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(Report().finish(), 2)


class Processes(unittest.TestCase):
    """What the fault cases observe."""

    def observed(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                pathlib.Path(folder, name.replace("_", ".")).write_text(content)
            return observe(pathlib.Path(folder))

    def test_nothing_ran(self):
        self.assertEqual(lost(self.observed()), "no process ran")

    def test_a_fault_that_the_lab_could_not_make(self):
        seen = self.observed(server_status="0\n", server_out="server: id: 0\n", troubles="no netem\n")
        self.assertEqual(lost(seen), "lab: no netem")

    def test_ok(self):
        self.assertEqual(lost(self.observed(server_status="0\n", server_out="server: id: 0\n")), "")


class Files(unittest.TestCase):
    def test_each_program_is_listed_and_each_listed_one_exists(self):
        files = {str(path.relative_to(TESTS_C).with_suffix("")) for kind in ["compared", "ours"]
                 for path in TESTS_C.glob(f"*/{kind}/*.c")}
        self.assertEqual(set(read_programs(TESTS_C)), files)

    def test_each_list_of_differences_belongs_to_a_program(self):
        for path in TESTS_C.glob("*/*/*.diff"):
            program = str(path.relative_to(TESTS_C).with_suffix(""))
            self.assertIn(program, read_programs(TESTS_C))
            self.assertTrue(read_differences(TESTS_C, program), path)

    def test_hangs_have_a_program_and_a_reason(self):
        programs = read_programs(TESTS_C)
        for (program, device, reference), reason in read_hangs(TESTS_C).items():
            self.assertIn(device, programs[program])
            self.assertRegex(reference, r"^\d+\.\d+$")
            self.assertTrue(reason)

    def test_hangs_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "hangs.list").write_text("# comment\n\na/compared/b siw 44.0: reason: more\n")
            self.assertEqual(read_hangs(pathlib.Path(folder)), {("a/compared/b", "siw", "44.0"): "reason: more"})


class Shell(unittest.TestCase):
    """checks.sh"""

    def finished(self, script):
        command = f'work=$(mktemp -d); . {HERE}/checks.sh; {script}; finish; status=$?; rm -r "$work"; exit "$status"'
        return subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True).returncode

    def test_status(self):
        self.assertEqual(self.finished("ok a"), 0)
        self.assertEqual(self.finished("ok a; fail b"), 1)
        self.assertEqual(self.finished("check a false"), 1)

    def test_nothing_ran(self):
        self.assertNotEqual(self.finished(":"), 0)


if __name__ == "__main__":
    unittest.main()
