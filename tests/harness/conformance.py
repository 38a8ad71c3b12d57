"""Conformance programs (tests-c): their list, the differences that are listed for them, and judging a run.

A run is (lines of standard output, exit status or None if it did not run, text of standard error).
"""

import collections

from .comparison import hunks

STACK_LINES = 120
# state: ok, FAIL or skip, as in a report.
Verdict = collections.namedtuple("Verdict", "state facts detail")


def read_programs(folder):
    """Returns {path: [devices]} in the order of programs.list in `folder`, that of the programs. Tools are left out."""
    lines = (folder / "programs.list").read_text(encoding="utf-8").splitlines()
    entries = [line.split("#")[0].split() for line in lines]
    return {words[0]: words[1:] for words in entries if words and words[1] != "tool"}


def is_ours(program):
    """Whether a program runs on our library only."""
    return program.split("/")[1] == "ours"


class Difference:
    """One entry of a .diff file: where it applies, the reference's lines and ours."""

    def __init__(self, fields, lines):
        self.fields, self.seen = fields, False
        self.removed = [line[2:] for line in lines if line.startswith("- ")]
        self.added = [line[2:] for line in lines if line.startswith("+ ")]
        self.name = " ".join(fields.get("id", ["?"])) + ": " + (self.removed + self.added + [""])[0]

    def applies(self, device, reference, kernel):
        # Debian's kernels have the versions that the other labs have.
        kernel = {"debian": "6.1"}.get(kernel, kernel.removeprefix("debian-"))
        wanted = {"device": device, "reference": reference, "kernel": kernel}
        return all(value in self.fields.get(key, [value]) for key, value in wanted.items())


def read_differences(folder, program):
    """Reads PROGRAM.diff: blocks that begin with `id:` and further fields, followed by the differing
    places, separated by blank lines; `#` begins a comment."""
    path = folder / f"{program}.diff"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    fields, places = {}, []
    for line in lines:
        if line.startswith(("- ", "+ ")):
            if not places or places[-1][0] is not fields or places[-1][2]:
                places.append([fields, [], False])
            places[-1][1].append(line)
        elif not line:
            if places:
                places[-1][2] = True  # the place has ended
        elif not line.startswith("#"):
            key, value = line.split(":", 1)
            if key == "id":
                fields = {}
            fields[key] = value.split()
    return [Difference(place_fields, place) for place_fields, place, _ in places]


def pick_entry(entries, removed, added):
    """Returns the entry whose lines begin this hunk; adjacent differences share a hunk."""
    for entry in entries:
        if entry.removed == removed[:len(entry.removed)] and entry.added == added[:len(entry.added)]:
            return entry
    return None


def pair_lines(removed, added, entries):
    """Matches the hunk with listed differences. Returns them, or None if lines remain."""
    used = []
    while removed or added:
        entry = pick_entry(entries, removed, added)
        if entry is None or not (entry.removed or entry.added):
            return None
        removed, added = removed[len(entry.removed):], added[len(entry.added):]
        used.append(entry)
    return used


def ended_badly(lines, status):
    if status is None:
        return "did not run"
    if status == 137:
        return "hung (killed)"
    if status:
        return f"exit status {status}"
    if not lines or not (lines[-1] == "[end] complete" or lines[0].startswith("SKIP")):
        return "ended early"
    return ""


def judge_pair(first, second, entries):
    """Compares a run on the reference with one on ours; `entries` are the differences that must occur. Sets their `seen`."""
    lines, status, _ = first
    other_lines, other_status, errors = second
    bad = ended_badly(lines, status)
    # The reference's rsockets sometimes lose a wake-up and hang; this run cannot be compared then.
    if bad.startswith("hung"):
        return Verdict("skip", "the reference hung", [])
    if bad:
        return Verdict("FAIL", f"the reference {bad}", lines[-3:])
    if lines[0].startswith("SKIP"):
        return Verdict("skip", lines[0][5:], [])
    unlisted = unlisted_lines(lines, other_lines, entries)
    bad = ended_badly(other_lines, other_status)
    if bad or unlisted:
        return Verdict("FAIL", bad or f"{len(unlisted)} differing lines", unlisted[:60] + errors.splitlines()[-5:])
    missing = [entry.name for entry in entries if not entry.seen]
    if missing:
        return Verdict("FAIL", "listed differences no longer occur: " + ", ".join(missing), [])
    return Verdict("ok", f"{len(lines)} lines" + (f", {len(entries)} listed differences" if entries else ""), [])


def unlisted_lines(lines, other_lines, entries):
    """Returns the differing lines that no entry lists, and marks the entries that occur."""
    unlisted = []
    for removed, added in hunks(lines, other_lines):
        used = pair_lines(removed, added, entries)
        if used is None:
            unlisted += ["- " + line for line in removed] + ["+ " + line for line in added]
        else:
            for entry in used:
                entry.seen = True
    return unlisted


def end_of(errors):
    """Returns the last lines of standard error; from the stacks on if a case hung (await_child in tests-c/cases.h)."""
    lines = errors.splitlines()
    stacks = [number for number, line in enumerate(lines) if line.endswith(" hangs:")]
    return lines[stacks[0]:][:STACK_LINES] if stacks else lines[-5:]


def judge_cases(outcome):
    """Judges a run of a program in */ours, which prints PASS or FAIL for each case."""
    lines, status, errors = outcome
    failed = [line for line in lines if line.startswith("FAIL")]
    passed = sum(line.startswith("PASS") for line in lines)
    bad = ended_badly(lines, status)
    if lines and lines[0].startswith("SKIP"):
        return Verdict("skip", lines[0][5:], [])
    if failed or bad:
        return Verdict("FAIL", bad or f"{len(failed)} cases", failed + (lines[-3:] if bad else []) + end_of(errors))
    return Verdict("ok", f"{passed} cases", [])
