"""The kind `pair`: cases run in two labs at the same time, one with each library, and must print the same.

The rows of the cases are: name, group, and `yes` if the group is slow. A group runs in one lab for each library; slow
ones run beside the others. The guest script writes the output and the status of each process to $LAB_OUT/CASE."""

import pathlib
import shutil
import tempfile
import threading

from ..comparison import difference
from ..lab import run_lab
from ..processes import lines, lost, observe
from ..words import fill


def judge(test, folder, device, case, report):
    """An intended difference is in known/CASE, in the form of diff(1) ("<" the reference, ">" ours), and must occur."""
    name, ours, reference = f"{device}-{case}", folder / "ours" / case, folder / "reference" / case
    for library, path in [("the reference", reference), ("ours", ours)]:
        if not (path / "complete").exists():
            report.fail(name, f"the lab with {library} ended before the case did")
            return
    if (reference / "unsuited").exists():
        report.skip(name, " ".join(lines(reference / "unsuited")))
        return
    first, second = observe(reference), observe(ours)
    differing, known = difference(first, second), lines(test.folder / "known" / case)
    for suffix, content in [("reference", first), ("ours", second), ("diff", differing)]:
        (folder / f"{case}.{suffix}").write_text("".join(line + "\n" for line in content))
    facts = f"{len(first)} lines"
    for library, seen in [("the reference", first), ("ours", second)]:
        if why := lost(seen):
            report.fail(name, f"with {library}: {why}", differing[:30])
            return
    hung = [path.stem for path in sorted(ours.glob("*.status")) if "hang" in lines(path)]
    if hung:
        report.fail(name, "hangs with ours: " + " ".join(hung), differing[:30])
    elif differing == known:
        alike = ", with the known difference" if known else " alike"
        report.ok(name, f"{facts}{alike}, {' '.join(lines(ours / 'seconds'))} s")
    elif known:
        report.fail(name, f"{facts}, not with the known difference of known/{case}:", differing[:30])
    else:
        report.fail(name, f"{facts}, not alike:", differing[:30])


class Labs(threading.Thread):
    """Runs cases in two labs at the same time, one for each library."""

    def __init__(self, command, names, folder, where):
        super().__init__()
        self.command, self.names, self.folder, self.where, self.statuses = command, names, folder, where, {}

    def one(self, library):
        out = self.folder / library
        for name in self.names:  # of an earlier run
            shutil.rmtree(out / name, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        self.statuses[library] = run_lab(self.command, **{**self.where, "lib": library, "out": out})

    def run(self):
        other = threading.Thread(target=self.one, args=["reference"])
        other.start()
        self.one("ours")
        other.join()

    def judge(self, test, device, report):
        available = [report.lab_ended(f"{device}-lab with {library}", status)
                     for library, status in self.statuses.items()]
        for name in self.names:
            if not all(available):
                report.skip(f"{device}-{name}", "the lab has no such kernel or reference")
            else:
                judge(test, self.folder, device, name, report)


def run(test, options, report):
    values, rows = test.values(options), test.choose(options)
    groups = {}
    for name, group, is_slow in rows:
        groups.setdefault((is_slow == "yes", group), []).append(name)
    with tempfile.TemporaryDirectory() as scratch:
        for one in test.rounds(options):
            device, where = one["device"], test.lab(options, values, one)
            folder = (options.results or pathlib.Path(scratch)) / device
            labs = {key: Labs(fill(test.data["command"], {**values, **one, "cases": names}), names, folder, where)
                    for key, names in groups.items()}
            slow = [lab for (is_slow, _), lab in labs.items() if is_slow]
            for lab in slow:
                lab.start()
            for lab in labs.values():
                if lab not in slow:
                    lab.run()
                    lab.judge(test, device, report)
            for lab in slow:
                lab.join()
                lab.judge(test, device, report)
