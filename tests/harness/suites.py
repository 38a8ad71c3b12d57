"""The suites of tests (tests/suites.toml), the skips that are expected (tests/skips), and the
outcome of a suite."""

import collections
import re
import tomllib

from .lab import TOP, UNAVAILABLE
from .report import counts

TIERS = ["check", "ci", "all"]
REQUIRED = {"name": str, "shows": str, "tier": str, "cpus": int, "lab": bool, "needs": list,
            "seconds": int, "time": str}
# Without a command, the suite is a test that tests/run runs.
OPTIONAL = {"command": None, "test": None, "options": "", "within": None, "memory": 1500, "one_case": False}
# Lines of a skipped case: of the harness, and of `cargo test`.
SKIP = re.compile(r"(?:skip +|test )(.*?)(?: \.\.\. ignored(.*))?$")

Suite = collections.namedtuple("Suite", [*REQUIRED, *OPTIONAL])


def read_suites(path=TOP / "tests/suites.toml"):
    """Returns the suites in the order of the file. Raises ValueError for an entry that is wrong."""
    suites = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["suite"]:
        name = entry.get("name", "?")
        for key, kind in REQUIRED.items():
            if not isinstance(entry.get(key), kind):
                raise ValueError(f"suite {name}: {key} is missing or of another type than {kind.__name__}")
        if unknown := set(entry) - set(REQUIRED) - set(OPTIONAL):
            raise ValueError(f"suite {name}: unknown keys {', '.join(sorted(unknown))}")
        if entry["tier"] not in TIERS or entry["time"] not in ("virtual", "real"):
            raise ValueError(f"suite {name}: tier {entry['tier']}, time {entry['time']}")
        if "command" in entry and {"test", "options"} & set(entry):
            raise ValueError(f"suite {name}: a command, and a test or its options")
        is_test = {} if "command" in entry else {"command": f"tests/run {name}", "test": name}
        suites.append(Suite(**{**OPTIONAL, **is_test, **entry}))
    names = [suite.name for suite in suites]
    for suite in suites:
        if names.count(suite.name) > 1 or suite.within not in [None, *names]:
            raise ValueError(f"suite {suite.name}: named twice, or within a suite that does not exist")
    return suites


def of_tier(suites, tier):
    """Returns the suites of a tier and of those below it, without those that another one
    includes."""
    wanted = [suite for suite in suites if TIERS.index(suite.tier) <= TIERS.index(tier)]
    names = {suite.name for suite in wanted}
    return [suite for suite in wanted if suite.within not in names]


class Skips:
    """The expected skips: lines `SUITE: CASE | REASON`, in which SUITE and CASE may have `*`."""

    def __init__(self, path=TOP / "tests/skips"):
        self.patterns = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                pattern, bar, reason = line.partition(" | ")
                if not bar or not reason.strip() or ": " not in pattern:
                    raise ValueError(f"tests/skips:{number}: not `SUITE: CASE | REASON`")
                self.patterns.append(re.compile(".*".join(map(re.escape, pattern.strip().split("*")))))

    def lists(self, suite, case):
        return any(pattern.fullmatch(f"{suite}: {case}") for pattern in self.patterns)

    def unlisted(self, suite, cases):
        return [case for case in cases if not self.lists(suite, case)]


def skipped_cases(text):
    """Returns `NAME: REASON` of each case that was skipped."""
    cases = []
    for line in text.splitlines():
        found = SKIP.match(line)
        if found and (line.startswith("skip") or found[2] is not None):
            cases.append(re.sub(r"\s+", " ", found[1] + (found[2] or "")).strip())
    return cases


class Outcome:
    """The result of a suite, from its exit status and what it printed. The status is None if it was
    ended at its time limit."""

    def __init__(self, suite, status, text, seconds, skips):
        self.suite, self.status, self.seconds, self.text = suite, status, seconds, text
        self.is_old, self.cpu_seconds = False, 0
        self.problems = []
        found = counts(text)
        passed, failed, skipped = found or (0, 0, 0)
        cases = skipped_cases(text)
        if status == UNAVAILABLE:
            cases += [] if cases else [last_line(text) or "not available here"]
            skipped = max(skipped, len(cases))
        elif status is None:
            self.problems.append(f"it did not end within {suite.seconds} s")
        elif found is None and suite.one_case:
            passed, failed = int(status == 0), int(status != 0)
        elif found is None:
            self.problems.append(f"it printed no closing line (status {status})")
        elif status and not failed:
            self.problems.append(f"it ended with status {status}")
        elif not passed + failed + skipped:
            self.problems.append("no case ran")
        if skipped > len(cases):
            self.problems.append(f"{skipped - len(cases)} skipped cases are not named")
        self.unlisted = list(dict.fromkeys(skips.unlisted(suite.name, cases)))
        # A skip that nobody expected is a failure.
        unexpected = len(skips.unlisted(suite.name, cases))
        self.numbers = (passed, failed + unexpected + len(self.problems), max(skipped - unexpected, 0))

    def verdict(self):
        if self.status is None:
            return "HUNG"
        return "FAILED" if self.numbers[1] else "before" if self.is_old else "ok"

    def row(self):
        passed, failed, skipped = self.numbers
        return (f"{self.suite.name:<22} {self.verdict():<7} {passed:6} passed {failed:4} failed {skipped:4} skipped "
                f"{self.seconds:5} s {self.cpu_seconds:5} s of processors  {self.suite.shows}")


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]
