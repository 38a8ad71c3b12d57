"""The kind `pairings`: a server and its clients, with each library at either end.

The control is the reference with itself. The test's folder has the cases (tests/programs/case-list.sh), each group of
which runs in one lab. The guest script, tests/programs/guest, writes to $LAB_OUT/CASE/SERVERLIB-CLIENTLIB/."""

import collections
import pathlib
import re
import tempfile

from ..comparison import difference
from ..lab import TOP, run_lab

CONTROL = "reference-reference"
PAIRINGS = ["ours-ours", "ours-reference", "reference-ours"]
Case = collections.namedtuple("Case", "name group expect program")
GUEST = TOP / "tests/programs/guest"
# Prints the rows of the cases.
CASES = f""". {TOP}/tests/programs/case-list.sh; define_cases
    for i in "${{!case_names[@]}}"; do
        row=("${{case_names[i]}}" "${{case_groups[i]}}" "${{case_expect[i]}}" "${{case_client[i]%% *}}")
        (IFS=$'\\t'; echo "${{row[*]}}")
    done"""
ERROR = re.compile("unable|cannot|fail|error|not supported|invalid|refused|broken|differ", re.I)
# Lines that differ between runs are left out: rping's client prints its DISCONNECTED event or exits
# before it, and then the message that its worker was waiting for; it reports TIMEWAIT_EXIT, which comes early on
# the virtual InfiniBand adapters, if the id is still there; cmtime's tables of times.
LEFT_OUT = re.compile(r"client DISCONNECT EVENT|unhandled event: RDMA_CM_EVENT_TIMEWAIT_EXIT|step +(total|avg)|[a-z ]+:?( +[0-9.]+){4,}$")
LEFT_OUT_OF_CLIENTS = re.compile(r"wait for RDMA_WRITE_ADV state 10")


def text(path):
    return path.read_text(errors="replace") if path.exists() else ""


def shown(pairing):
    return pairing.replace("-", "/")


def output(folder):
    return [line for path in sorted(folder.glob("*.out")) for line in text(path).splitlines()]


def is_complete(folder):
    return (folder / "complete").exists() and not (folder / "not-ready").exists()


def milliseconds(folder, pairing):
    return text(folder / pairing / "milliseconds").strip()


def reason(folder):
    """Returns why a pairing fails: its first line that reports an error, and the statuses."""
    if not (folder / "complete").exists():
        return "the lab ended before"
    return f"{next(filter(ERROR.search, output(folder)), 'no message')} ({statuses(folder)})"


def statuses(folder):
    return " ".join(f"{path.stem} {text(path).strip()}" for path in sorted(folder.glob("*.status")))


# ---- whether both ends succeed ------------------------------------------------------------------


def succeeds(folder, status):
    """Returns whether both ends succeeded. A terminated server has status 143."""
    return (is_complete(folder) and text(folder / "server.status").strip() in ("0", "143")
            and text(folder / "client1.status").strip() == status
            and not any(re.search("verification failed|^failed:", line) for line in output(folder)))


def judge_works(folder, case, row, report, _tally):
    """Ours must work with itself in any case. Pairings with the reference are judged only if the reference
    works with itself."""
    facts, pairings, bad = "ms:", PAIRINGS, []
    if succeeds(folder / CONTROL, case.expect):
        facts += f" reference/reference {milliseconds(folder, CONTROL)}"
    else:
        facts, pairings = f"the reference fails: {reason(folder / CONTROL)}; {facts}", PAIRINGS[:1]
    for pairing in pairings:
        if succeeds(folder / pairing, case.expect):
            facts += f", {shown(pairing)} {milliseconds(folder, pairing)}"
        else:
            bad.append(f"{shown(pairing)}: {reason(folder / pairing)}")
    report.note("FAIL" if bad else "ok", "-".join([*row[1:], case.name]), "; ".join([*bad, facts]))


# ---- whether both libraries do the same ---------------------------------------------------------


def normalize(path):
    """Returns a program's output without the lines that differ between runs. Sorted, because standard
    output is buffered and standard error is not."""
    lines = [line for line in text(path).splitlines() if not LEFT_OUT.match(line)]
    if path.name.startswith("client"):
        lines = [line for line in lines if not LEFT_OUT_OF_CLIENTS.match(line)]
    return sorted(re.sub("mlid 0x[0-9a-f]+", "mlid N", line) for line in lines)


def observe(folder):
    """Returns everything that is compared for one pairing of a case."""
    if not (folder / "complete").exists():
        return ["the lab ended before this case did"]
    lines = ["server not ready"] if (folder / "not-ready").exists() else []
    if (folder / "ids-left").exists():
        lines.append("ids left: " + text(folder / "ids-left").strip())
    for path in sorted(folder.glob("*.out")):
        lines.append(f"{path.stem} status {text(path.with_suffix('.status')).strip()}")
        lines += [f"{path.stem}: {line}" for line in normalize(path)]
    return lines


def all_succeed(folder):
    """Returns whether all ends succeeded. A terminated server has status 143; cmtime exits with 0 even
    if the device could not create all of its QPs."""
    if not is_complete(folder) or any(line.startswith("failure") for line in output(folder)):
        return False
    for path in folder.glob("*.status"):
        status = text(path).strip()
        terminated = path.stem == "server" and status == "143" and (folder / "ids-left").exists()
        if status != "0" and not terminated:
            return False
    return True


def step_times(path):
    """Returns {step: microseconds per connection} of cmtime. 44.0 prints "create id :  total max min us/conn",
    65.0 "create id  avg/conn total us/conn ...", first in the table with real QPs, which is used."""
    found = {}
    for line in text(path).splitlines():
        match = re.fullmatch(r" *([a-z ]*[a-z])( +[0-9.]+)+ *", line.replace(":", "", 1))
        if match:
            numbers = line.replace(":", "", 1)[match.end(1):].split()
            value = numbers[0] if ":" not in line else (numbers + ["0"] * 4)[3]
            found.setdefault(match[1], float(value))
    return found


def times(folder):
    """Returns the time of each step of cmtime per connection: reference, then ours."""
    reference, ours = (step_times(folder / pairing / "client1.out") for pairing in [CONTROL, PAIRINGS[0]])
    steps = [step for step in reference if step in ours and reference[step] + ours[step] > 0 and reference[step] < 1e7
             and not re.search("qp_conn|threads", step)]
    return ", ".join(f"{step} {reference[step]:g}→{ours[step]:g}" for step in steps)


class Tally:
    """Counts for the table, by (program, device, reference)."""

    def __init__(self):
        self.rows = {}

    def count(self, row, what):
        self.rows.setdefault(row, collections.Counter())[what] += 1

    def write(self, path):
        columns = ["program", "device", "version", "cases", "work with the reference", *map(shown, PAIRINGS)]
        lines = ["Cases with the same results as with the reference on both ends (server/client), of those that "
                 "work there.", "",
                 f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
        for row, number in self.rows.items():
            cells = [*row, *(str(number[what]) for what in ["cases", "control", *PAIRINGS])]
            lines.append(f"| {' | '.join(cells)} |")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def judge_failed_control(folder, name, report):
    control, ours = folder / CONTROL, folder / PAIRINGS[0]
    if not (control / "complete").exists():
        report.fail(name, "the lab ended before the control did")
        return
    facts = f"the reference fails too: {reason(control)}"
    if not ours.is_dir():
        facts += "; not tried with ours"
    elif observe(control) == observe(ours):
        facts += "; ours alike"
    else:
        facts += f"; ours: {reason(ours)}"
    report.skip(name, facts)


def judge_alike(folder, case, row, report, tally):
    name, control = "-".join([*row[1:], case.name]), folder / CONTROL
    tally.count(row, "cases")
    if not all_succeed(control):
        judge_failed_control(folder, name, report)
        return
    tally.count(row, "control")
    facts = f"{statuses(control)}; ms: reference {milliseconds(folder, CONTROL)}"
    differing, detail = [], []
    for pairing in PAIRINGS:
        lines = difference(observe(control), observe(folder / pairing))
        if lines:
            differing.append(shown(pairing))
            detail += [f"{shown(pairing)}: {line}" for line in lines[:20]]
        else:
            tally.count(row, pairing)
            facts += f", {shown(pairing)} {milliseconds(folder, pairing)}"
    if case.program == "cmtime":
        facts += f"; us per connection, reference→ours: {times(folder)}"
    if differing:
        report.fail(name, f"differs from the reference: {' '.join(differing)}; {facts}", detail)
    else:
        report.ok(name, facts)


# ---- running ------------------------------------------------------------------------------------

JUDGES = {"alike": judge_alike, "works": judge_works}


def run_group(test, cases, one, options, values, folder, report, tally):
    """Runs cases in one lab."""
    folder.mkdir(parents=True, exist_ok=True)
    where = {**test.lab(options, values, one), "reference": one["reference"], "out": folder}
    command = [GUEST, one["device"], one["reference"], test.folder, test.data["judge"], *(case.name for case in cases)]
    status = run_lab(command, **where)
    available = report.lab_ended("-".join([one["device"], one["reference"], cases[0].group]), status)
    for case in cases:
        row = case.program, one["device"], one["reference"]
        if not available:
            report.skip("-".join([*row[1:], case.name]), "the lab has no such kernel or reference")
        else:
            JUDGES[test.data["judge"]](folder / case.name, case, row, report, tally)


def run(test, options, report):
    values, tally, names = test.values(options), Tally(), [row[0] for row in test.choose(options)]
    with tempfile.TemporaryDirectory() as scratch:
        for one in test.rounds(options):
            # A version of the reference may have programs, and cases, that the other one has not.
            cases = [Case(*row) for row in test.rows(REFERENCE=one["reference"]) if row[0] in names]
            folder = (options.results or pathlib.Path(scratch)) / f"{one['device']}-{one['reference']}"
            for group in dict.fromkeys(case.group for case in cases):
                if one["device"] in test.data.get("only_on", {}).get(group, one["device"]):
                    of_group = [case for case in cases if case.group == group]
                    run_group(test, of_group, one, options, values, folder, report, tally)
            report.bound_repetitions(f"{folder.name}-repetitions", map(text, folder.glob("*/*/milliseconds")))
    if getattr(options, "table", None):
        tally.write(pathlib.Path(options.table))
