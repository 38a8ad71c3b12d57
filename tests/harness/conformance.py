"""Conformance programs (tests-c): their list, the differences that are listed for them, and judging a run.

A run is (lines of standard output, exit status or None if it did not run, text of standard error).
"""

import collections

from .comparison import hunks
from .results import END, Results, is_skipped, unprepared

STACK_LINES = 120
# state: ok, FAIL or skip, as in a report. skipped: cases that a program could not run, [(name, reason)].
Verdict = collections.namedtuple("Verdict", "state facts detail skipped", defaults=[()])


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
    """Reads PROGRAM.diff:

        # the reason
        id: short-name               begins a block
        device: rxe siw              optional; default all the program runs on
        reference: 44.0              optional; default every version
        kernel: 6.1                  optional; default every kernel
        - line of the reference
        + our line

    Consecutive `-` and `+` lines are one place of the output; either kind may be missing. A blank line starts the next
    place with the same fields. A block that applies to a run but does not occur in it fails the run, so that obsolete
    differences are noticed."""
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


def read_hangs(folder):
    """Reads hangs.list: `PROGRAM DEVICE REFERENCE: reason` for each program that is known to hang with the
    reference's library. Returns {(program, device, reference): reason}."""
    lines = (folder / "hangs.list").read_text(encoding="utf-8").splitlines()
    entries = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return {tuple(names.split()): reason for names, _, reason in entries}


def ended_badly(lines, status):
    """Returns why a run is not complete; an empty text if it is, or if the program does not apply and says so."""
    if status is None:
        return "did not run"
    if status == 137:
        return "hung (killed)"
    if status:
        return f"exit status {status}"
    if not is_skipped(lines) and (not lines or lines[-1] != END):
        return "ended early"
    return ""


def judge_alone(outcome):
    """Judges a run with which nothing is compared: ok if it is complete, and every preparation succeeded."""
    lines, status, errors = outcome
    bad = ended_badly(lines, status)
    if bad:
        return Verdict("FAIL", bad, lines[-3:] + end_of(errors))
    if is_skipped(lines):
        return Verdict("skip", lines[0][5:], [])
    if unprepared(lines):
        return Verdict("FAIL", "a preparation failed", unprepared(lines))
    return Verdict("ok", f"{len(lines)} lines", [])


def judge_pair(first, second, entries, known_hang=""):
    """Compares a run on the reference with one on ours; `entries` are the differences that must occur. Sets their
    `seen`. known_hang: why the reference may hang. Ours has to be complete whatever becomes of the reference."""
    reference, ours = judge_alone(first), judge_alone(second)
    if reference.state != "ok":
        return judge_without(reference, ours, known_hang)
    lines, other_lines, errors = first[0], second[0], second[2]
    unlisted = unlisted_lines(lines, other_lines, entries)
    if ours.state != "ok" or unlisted:
        facts = f"{len(unlisted)} differing lines" if ours.state == "ok" else ours.facts
        return Verdict("FAIL", facts, unlisted[:60] + errors.splitlines()[-5:])
    missing = [entry.name for entry in entries if not entry.seen]
    if missing:
        return Verdict("FAIL", "listed differences no longer occur: " + ", ".join(missing), [])
    return Verdict("ok", f"{len(lines)} lines" + (f", {len(entries)} listed differences" if entries else ""), [])


def judge_without(reference, ours, known_hang):
    """Judges a run of ours where that of the reference cannot be compared."""
    if reference.state == "skip":
        # What the reference lacks ours may have, and then has to end; both may lack the same.
        if ours.state == "FAIL":
            return Verdict("FAIL", f"{ours.facts}; the reference skips it: {reference.facts}", ours.detail)
        return Verdict("skip", reference.facts, [])
    facts = f"the reference {reference.facts}"
    if ours.state != "ok":
        return Verdict("FAIL", f"{ours.facts}; {facts}", ours.detail + reference.detail)
    if reference.facts.startswith("hung") and known_hang:
        return Verdict("skip", f"the reference hung: {known_hang}", [])
    return Verdict("FAIL", facts, reference.detail)


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
    """Judges a run of a program in */ours, which prints a result for each of the cases that it declares."""
    lines, status, errors = outcome
    bad = ended_badly(lines, status)
    if not bad and is_skipped(lines):
        return Verdict("skip", lines[0][5:], [])
    results = Results(lines)
    failed = [line for line in lines if line.startswith("FAIL")]
    skipped = list(results.names["SKIP"].items())
    bad = bad or results.trouble()
    if failed or bad:
        detail = failed + (lines[-3:] if bad else []) + end_of(errors)
        return Verdict("FAIL", bad or f"{len(failed)} cases", detail, skipped)
    if not results.names["PASS"]:
        return Verdict("skip", "all cases are skipped", [], skipped)
    return Verdict("ok", f"{len(results.names['PASS'])} cases", [], skipped)
