"""Runs the suites and tests of tests/suites.toml, which says what their keys are."""

import importlib.util
import shlex
import subprocess
import sys
import tomllib

from .cases import bash_cases, choose
from .kinds import compare, pair, pairings, relay
from .lab import BUILT_C, DEVICES, TOP, build_c, ours_dir
from .options import parser
from .report import Report
from .suites import read_suites
from .words import fill, fill_option

TESTS = TOP / "tests"
KINDS = {"relay": relay.run, "pair": pair.run, "pairings": pairings.run,
         "module": lambda test, options, report: test.module().run(test, options, report)}


class Test:
    """A table `test.NAME`."""

    def __init__(self, name, data):
        self.name, self.data, self.folder = name, data, TESTS / data.get("folder", name)

    def module(self):
        """Loads the test's own Python module."""
        spec = importlib.util.spec_from_file_location(f"{self.name}_suite", self.folder / self.data["module"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def parser(self):
        """Returns a parser for the options that the test takes, and for those of its own."""
        data = self.data
        made = parser(data["about"], *data.get("takes", ["device"]), "list", "repeat")
        own = {name: {"choices": values, "help": "only this one"} for name, values in data.get("each", {}).items()
               if name not in ("device", "reference")}
        for name, settings in {**own, **data.get("options", {})}.items():
            settings = dict(settings)
            default = settings.get("default")
            if default is False:
                settings["action"] = "store_true"
            elif isinstance(default, int):
                settings["type"] = int
            made.add_argument(f"--{name}", **settings)
        made.prog = f"tests/run {self.name}"
        made.set_defaults(**data.get("defaults", {}))
        return made

    def rounds(self, options):
        """Returns [{loop: value}]: what the key `each` loops over, or only what an option names."""
        found = [{}]
        for name, values in self.data.get("each", {"device": DEVICES}).items():
            wanted = getattr(options, name, None)
            found = [{**one, name: value} for one in found for value in ([wanted] if wanted else values)]
        return found

    def rows(self, **variables):
        """Returns the cases, [(name, field...)], as the key `cases` says."""
        cases = pairings.CASES if self.data["kind"] == "pairings" else self.data.get("cases")
        if isinstance(cases, list):
            listed = subprocess.run(fill(cases, self.places()), check=True, stdout=subprocess.PIPE, text=True)
            return [(name,) for name in listed.stdout.splitlines()]
        variables = {**self.data.get("variables", {}), **variables}
        return bash_cases(self.folder / "cases.sh", cases, **variables) if cases else []

    def choose(self, options):
        """Returns the rows of the cases that --only selects."""
        rows = self.rows()
        names = choose([row[0] for row in rows], options.only)
        return [row for row in rows if row[0] in names]

    def list(self, options):
        if "cases" in self.data or self.data["kind"] == "pairings":
            return self.choose(options)
        rows = getattr(self.module(), "rows", None) if "module" in self.data else None
        if not rows:
            sys.exit(f"{self.name}: only the program in the lab knows the cases")
        return rows(options)

    def places(self):
        return {"top": TOP, "folder": self.folder, "ours": ours_dir(), "python": sys.executable}

    def values(self, options):
        """Builds the C programs and returns what placeholders stand for."""
        folder = build_c(*self.data["programs"]) if "programs" in self.data else BUILT_C
        return {**self.places(), **vars(options), "programs": folder}

    def lab(self, options, values, one):
        """Returns the options of the lab for a round: those of `lab`, and of `where` for its values."""
        lab = dict(self.data.get("lab", {}))
        for value in [*one.values(), getattr(options, "device", None)]:
            lab.update(self.data.get("where", {}).get(value, {}))
        lab.update((name, given) for name in ("kernel", "reference") if (given := getattr(options, name, None)))
        if getattr(options, "results", None):
            lab["out"] = options.results / "-".join(one.values())
        return {name: fill_option(value, values) for name, value in lab.items()}


def read_tests():
    """Returns {name: Test}."""
    with open(TESTS / "suites.toml", "rb") as file:
        return {name: Test(name, table) for name, table in tomllib.load(file)["test"].items()}


def run_test(test, words):
    """Runs a test with these options. Returns the exit status."""
    if test.data["kind"] == "compare":
        return compare.main(test, words)
    options = test.parser().parse_args(words)
    if options.list:
        for row in test.list(options):
            print(*row)
        return 0
    report = Report()
    for _ in range(options.repeat):
        KINDS[test.data["kind"]](test, options, report)
    return report.finish(empty_is_wrong=not test.data.get("may_be_empty"))


def main(about, words):
    suites, tests = {suite.name: suite for suite in read_suites()}, read_tests()
    if not words or words[0].startswith("-"):
        print(about, "\nsuites: " + " ".join(suites), "tests: " + " ".join(tests), sep="\n")
        return 0
    name, *words = words
    suite = suites.get(name)
    if suite and not suite.test:
        return subprocess.run(suite.command.split() + words, check=False, cwd=TOP).returncode
    test = tests.get(suite.test if suite else name)
    if not test:
        print(f"{name}: no suite or test of this name; tests/run prints the names", file=sys.stderr)
        return 2
    words = [*(shlex.split(suite.options) if suite else []), *words]
    if test.data["kind"] == "compare" and suite:
        words = ["--out", str(TOP / f"target/tests-c-{name}"), *words]
    return run_test(test, words)
