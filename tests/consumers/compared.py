"""Runs packaged programs in the lab and writes their results into a table."""

import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
from harness import TOP, UNAVAILABLE, matches, ours_dir, start_lab

DEVICES = ["rxe", "siw", "ib"]
SECONDS = 9000
# Cases whose programs are compiled first, which takes minutes.
CRATES = ["sideway-cmtime", "async-rdma-cm"]
LIBRPMA = ["fio-librpma_apm", "fio-librpma_gpspm"]
STATES = {"same": "ok", "differs": "FAIL", "fails": "FAIL", "cannot": "skip"}
BUILD, RESULTS, DOCUMENT = TOP / "target/tests-consumers", TOP / "target/tests-consumers/results", TOP / "docs/programs.md"
BEGIN, END = "<!-- begin: written by tests/run consumers --table -->", "<!-- end -->"
MARKS = {"same": "same", "differs": "**differs**", "fails": "**fails**", "cannot": "-"}


def packages():
    done = subprocess.run([HERE / "packages", "path"], stdout=subprocess.PIPE, check=False, text=True)
    return pathlib.Path(done.stdout.strip()) if done.returncode == 0 else None


def build(root):
    """UCX packages its example as source."""
    library = root / "usr/lib/x86_64-linux-gnu"
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run([os.environ.get("CC") or "cc", "-O1", "-w", f"-I{root}/usr/include", "-o", BUILD / "ucp_client_server",
                    root / "usr/share/doc/libucx-dev/examples/ucp_client_server.c", f"-L{library}",
                    f"-Wl,-rpath-link,{library}", "-lucp", "-lucs"], check=True)


def build_crates(report):
    """Programs of two Rust crates. One that cannot be built, for example without a network, is a skip."""
    done = subprocess.run([HERE / "crates", ours_dir().parent, BUILD / "crates"], stdout=subprocess.PIPE, check=True, text=True)
    for line in done.stdout.splitlines():
        report.skip(*line.split(" ", 1))


def build_librpma(report):
    """Builds fio with engines that Debian's package leaves out. A skip if its source cannot be had."""
    done = subprocess.run([HERE / "fio-librpma", "path"], stdout=subprocess.PIPE, check=False, text=True)
    program = BUILD / "fio-librpma"
    program.unlink(missing_ok=True)
    if done.returncode == 0:
        program.symlink_to(pathlib.Path(done.stdout.strip()) / "fio")
    elif done.returncode == UNAVAILABLE:
        report.skip("fio-librpma", "the source or the packages cannot be had here")
    else:
        report.fail("fio-librpma", "it cannot be built")


def run_device(device, root, pattern, report):
    lab = start_lab([HERE / "guest", device, root, BUILD, pattern], merge_stderr=False, time_limit=SECONDS, mem="3G", ib=device == "ib")
    complete = False
    with lab:
        for line in lab.stdout:
            complete |= line == "all ran\n"
            if line.startswith("{"):
                row = json.loads(line)
                keep(device, row)
                report.note(STATES[row["state"]], f"{device}-{row['name']}", row["facts"],
                            row["detail"] if row["state"] != "same" else ())
    if lab.returncode == UNAVAILABLE:
        report.skip(device, "the lab cannot run here")
    elif lab.returncode or not complete:
        report.fail(device, f"the lab ended with status {lab.returncode}")


def keep(device, new):
    """Stores a result beside those of cases that were not run this time."""
    path = RESULTS / f"{device}.json"
    kept = {row["name"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    kept[new["name"]] = new
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(list(kept.values()), indent=1))


def documented(lines):
    """The results that a table has, by device and case: those of other machines, or of runs whose files are gone."""
    cells = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in lines if line.startswith("| ")]
    (_, *devices), rows = cells[0], cells[2:]
    results = {device: {} for device in devices}
    states = {mark: state for state, mark in MARKS.items()}
    for name, *marks in rows:
        for device, mark in zip(devices, marks):
            if mark in states:
                results[device][name] = {"name": name, "state": states[mark], "facts": ""}
    for line in lines:
        cases, separator, facts = line.removeprefix("- `-` for ").partition(": ")
        for case in cases.split(", ") if separator and line.startswith("- ") else ():
            device, name = case.split(" ", 1)
            results[device][name]["facts"] = facts
    return results


def table(old):
    """One row for each case, a column for each device, and the reasons why some could not be compared. Cases that have
    no result here keep that of the old table."""
    results = documented(old)
    for device in DEVICES:
        if (RESULTS / f"{device}.json").exists():
            results.setdefault(device, {}).update((row["name"], row) for row in json.loads((RESULTS / f"{device}.json").read_text()))
    names = list(dict.fromkeys(name for rows in results.values() for name in rows))
    lines = [f"| program | {' | '.join(results)} |", "| --- " * (len(results) + 1) + "|"]
    reasons = {}
    for name in names:
        cells = []
        for device, rows in results.items():
            row = rows.get(name)
            cells.append(MARKS[row["state"]] if row else "")
            if row and row["state"] == "cannot":
                reasons.setdefault(row["facts"], []).append(f"{device} {name}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", *(f"- `-` for {', '.join(cases)}: {facts}" for facts, cases in reasons.items())]
    return lines


def write_table():
    before, rest = DOCUMENT.read_text().split(BEGIN)
    old, after = rest.split(END)
    DOCUMENT.write_text("\n".join([before + BEGIN, *table(old.strip().splitlines()), END]) + after)


def run(_test, options, report):
    if options.table:
        write_table()
        report.ok("table", str(DOCUMENT))
        return
    root = packages()
    if root is None:
        report.skip("consumers", "Debian's packages cannot be had here")
        return
    build(root)
    if any(matches(case, options.only) for case in CRATES):
        build_crates(report)
    if any(matches(case, options.only) for case in LIBRPMA):
        build_librpma(report)
    for device in [options.device] if options.device else DEVICES:
        run_device(device, root, options.only, report)
