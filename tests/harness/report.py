"""Result lines and the closing line.

Each case has one line, `ok|FAIL|skip NAME: facts`; details follow, indented. The last line of a run
is `N passed, N failed, N skipped`. scripts/check reads both.
"""

import re
import subprocess
import sys

from .lab import LAB_FAILED, UNAVAILABLE
from .results import DECLARED, END, Results

RESULT = re.compile(r"(ok|FAIL|skip)\s+(.*)")
# Programs that run in the lab report each case with one of these words.
WORDS = {"PASS": "ok", "FAIL": "FAIL", "SKIP": "skip"}
CLOSING = re.compile(r"(?:^|[^0-9])(\d+) passed[;,] (\d+) failed[;,] (\d+) (?:skipped|ignored)")
INDENT = "     "
# soft-iWARP refuses about 2 of 1,000 connections whose server sends first.
MOST_REPETITIONS = 3


def counts(text):
    """Returns the sums (passed, failed, skipped) of all closing lines in `text`, or None if there
    is none. `cargo test` prints one for each crate, in its own format."""
    found = [tuple(map(int, match.groups())) for match in map(CLOSING.search, text.splitlines()) if match]
    return tuple(map(sum, zip(*found))) if found else None


class Report:
    """Prints and counts results."""

    def __init__(self, title=""):
        self.title = title
        self.number = {"ok": 0, "FAIL": 0, "skip": 0}

    def note(self, state, name, facts="", detail=()):
        self.number[state] += 1
        print(f"{state:4} {name}" + (f": {facts}" if facts else ""), flush=True)
        self.detail(detail)

    def ok(self, name, facts=""):
        self.note("ok", name, facts)

    def fail(self, name, facts="", detail=()):
        self.note("FAIL", name, facts, detail)

    def skip(self, name, why):
        self.note("skip", name, why)

    @staticmethod
    def detail(lines):
        for line in lines:
            print(INDENT + line.rstrip("\n"), flush=True)

    def check(self, name, test, *arguments):
        """Calls `test`. The case fails if it returns false or raises an AssertionError."""
        try:
            good, detail = test(*arguments) is not False, []
        except AssertionError as error:
            good, detail = False, str(error).splitlines()
        self.note("ok" if good else "FAIL", name, "", detail[:30])
        return good

    def check_command(self, name, command, **options):
        """Runs `command`. If its exit status is not 0, the case fails with its output."""
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", **options)
        good = done.returncode == 0
        self.note("ok" if good else "FAIL", name, "", [] if good else done.stdout.splitlines()[:30])
        return good

    def relay(self, lines):
        """Prints the lines of a process that reports cases itself, and counts the results. Returns their
        number."""
        results = 0
        for line in lines:
            print(line.rstrip("\n"), flush=True)
            match = RESULT.match(line)
            if match:
                self.number[match[1]] += 1
                results += 1
        return results

    def relay_lab(self, name, lab, number=None):
        """Prints and counts the cases of a lab (from `start_lab`) whose program ends with the line `all ran`.
        Each line is printed when it arrives. `number`: how many cases there are, if that is known here. At least
        one is required, and as many as a closing line of the program counts. Returns the lines of the cases."""
        lines, cases, results = [], [], 0
        with lab:
            for line in (line.rstrip("\r\n") for line in lab.stdout):
                lines.append(line)
                if line[:5] in ("ok   ", "FAIL ", "skip ", INDENT):
                    cases.append(line)
                    results += self.relay([line])
        if lab.returncode == UNAVAILABLE:
            self.skip(name, "the lab cannot run here: " + "".join(lines[-1:]))
        elif lab.returncode or "all ran" not in lines[-1:]:
            self.fail(name, f"the lab ended with status {lab.returncode}", detail=lines[-10:])
        elif not results or results != (number or results):
            self.fail(name, f"results of {results} cases, there are {number or 'some'}")
        elif (closing := counts("\n".join(lines))) and sum(closing) != results:
            self.fail(name, f"results of {results} cases, the program counts {sum(closing)}")
        return cases

    def relay_program(self, name, lab):
        """Translates the results of a C program in the lab (from `start_lab`) to result lines, named NAME-CASE,
        when they arrive. The program fails unless it has a result for each of its cases (results.py)."""
        results = Results()
        with lab:
            for line in lab.stdout:
                found = results.add(line)
                if found and found[0] in WORDS:
                    self.number[WORDS[found[0]]] += 1
                    print(f"{WORDS[found[0]]:4} {name}-{found[1]}", flush=True)
                elif not found and not DECLARED.match(line) and line.strip() != END:
                    self.detail([line])
        if lab.returncode == UNAVAILABLE:
            self.skip(name, "the lab has no such kernel or reference")
        elif lab.returncode:
            self.fail(name, f"the lab ended with status {lab.returncode}")
        elif results.trouble():
            self.fail(name, results.trouble())

    def lab_ended(self, name, status):
        """Fails if the lab failed, also if it has all results. Returns false if there is no such lab here."""
        if status in LAB_FAILED:
            self.fail(name, f"the lab {LAB_FAILED[status]} (status {status})")
        return status != UNAVAILABLE

    def bound_repetitions(self, name, texts):
        """Fails if more pairings were run again than a kernel's rare fault explains (docs/compatibility.md). `texts`: what
        says of each pairing whether it was `tried again`."""
        again = sum("tried again" in text for text in texts)
        if again > MOST_REPETITIONS:
            self.fail(name, f"{again} pairings were tried again, at most {MOST_REPETITIONS} may be")

    def finish(self, empty_is_wrong=True):
        """Prints the closing line. Returns the exit status: 1 after a failure, 2 if no case ran."""
        passed, failed, skipped = self.number.values()
        empty = empty_is_wrong and not passed + failed + skipped
        if empty:
            print("no case ran: no such case, or not on this device", file=sys.stderr)
        closing = f"{passed} passed, {failed} failed, {skipped} skipped"
        print(f"{self.title}: {closing}" if self.title else closing, flush=True)
        return 1 if failed else 2 if empty else 0
