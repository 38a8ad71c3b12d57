"""The results of a run: each is stored when it is there, so that an interrupted run continues where it was."""

import collections
import json
import sys
import time

# state: "same" (as with the machine's own library, or all cases of a program passed), "differs", "fails" (works with
# the own library, or is required, and does not work with ours), or "cannot" (nothing to compare: why is in facts).
# figures: {name: {column: value}}.
Result = collections.namedtuple("Result", "state facts detail figures")
# run: a function without arguments that returns a Result. group: the section of the report.
Case = collections.namedtuple("Case", "group name run")
BAD = ("differs", "fails")
# Exit status when the run cannot begin or continue, as of argparse for incorrect usage; 1 is for differences.
UNUSABLE = 2


def refuse(text):
    """Ends the program with a sentence."""
    print(f"rdmacm-verify: {text}", file=sys.stderr)
    sys.exit(UNUSABLE)


def result(state, facts="", detail=(), figures=None):
    return Result(state, facts, list(detail), figures or {})


class Session:
    """folder: where results are kept. settings: what they depend on; a run with others does not continue this one."""

    def __init__(self, folder, settings, minutes, progress=sys.stderr):
        self.path, self.progress, self.results = folder / "results.jsonl", progress, {}
        self.began, self.seconds, self.left = time.monotonic(), minutes * 60, 0
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.resume(settings)
        else:
            self.path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")

    def resume(self, settings):
        lines = self.path.read_text(encoding="utf-8").splitlines()
        if json.loads(lines[0])["settings"] != settings:
            refuse(f"{self.path.parent} has results of another device, kernel or library; "
                   "choose another folder with --out, or delete it")
        for line in lines[1:]:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was killed while it wrote
            self.results[row["group"], row["name"]] = row
        self.say(f"continuing: {len(self.results)} results are there already")

    def say(self, text):
        print(text, file=self.progress, flush=True)

    def run(self, cases):
        """Runs the cases that have no result yet, as long as there is time."""
        for number, case in enumerate(cases, 1):
            if (case.group, case.name) in self.results:
                continue
            if time.monotonic() - self.began > self.seconds:
                self.left += 1
                continue
            began = time.monotonic()
            outcome = case.run()
            self.note(case, outcome, time.monotonic() - began)
            minutes = int(time.monotonic() - self.began) // 60
            self.say(f"[{number} of {len(cases)}, {minutes} min] {case.group}: {case.name}: {outcome.state}"
                     + (f" ({outcome.facts})" if outcome.facts else ""))

    def note(self, case, outcome, seconds):
        row = {"group": case.group, "name": case.name, "seconds": round(seconds, 1), **outcome._asdict()}
        self.results[case.group, case.name] = row
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
