"""Runs network programs with librspreload in pairings of libraries, and writes tables of the results."""

import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
from harness import DEVICES, TOP, UNAVAILABLE, choose, ours_dir, run_lab

LAB_SECONDS = 3000  # for the lab of a device
COLUMNS = ["ours-ours", "reference-reference", "ours-reference", "reference-ours"]
AUTO_COLUMNS = ["ours-ours", "ours-plain", "plain-ours"]
# Programs that also run with different libraries on the two ends.
MIXED = {"nc", "nc_half_close", "iperf3", "redis_cli", "redis_benchmark"}
MARKS = {"rdma": "<!-- table -->", "auto": "<!-- table of automatic mode -->"}
END = "<!-- end of the table -->"


Program = collections.namedtuple("Program", "packages modes services remark")


def read_programs():
    """Returns {case: Program} in the order of programs.list, which must name every case."""
    programs = {}
    for line in (HERE / "programs.list").read_text().splitlines():
        if line and not line.startswith("#"):
            name, packages, kind, remark = (field.strip() for field in line.split("|"))
            modes, _, services = kind.partition("+")
            programs[name] = Program([one.strip() for one in packages.split(",") if one.strip()],
                                     ["rdma", "auto"] if modes == "both" else [modes], bool(services), remark)
    written = {name for path in HERE.glob("cases-*.sh") for name in re.findall(r"^case_([a-z0-9_]+)\(\)", path.read_text(), re.M)}
    if written != set(programs):
        sys.exit(f"in programs.list or cases-*.sh only: {' '.join(sorted(written ^ set(programs)))}")
    return programs


def pairings(case, options):
    """Returns the pairings of a program, server first."""
    if options.pairing:
        return [options.pairing]
    if options.mode == "auto":
        return AUTO_COLUMNS
    if options.library:
        return [f"{options.library}-{options.library}"]
    return ["reference-reference", "ours-ours"] + (["ours-reference", "reference-ours"] if case in MIXED else [])


def outcome(folder):
    """Returns `ok|FAIL|skip FACTS` of a pairing, or an empty string if it was not started."""
    if not folder.exists():
        return ""
    result = folder / "result"
    return result.read_text(errors="replace").strip() if result.exists() else "FAIL the lab ended before"


def cell(result, mode):
    """Returns the table's text for a result. In automatic mode it is the way that the data has gone."""
    state, _, facts = result.partition(" ")
    if state == "ok" and mode == "auto":
        return "TCP" if "over TCP" in facts else "RDMA"
    if state == "ok":
        return "works"
    if state == "skip":
        text = "over TCP, as fork mode on soft-iWARP is" if "over TCP" in facts else f"not tried: {facts}"
        return text.replace("|", "/")
    return f"fails: {facts}".replace("|", "/") if state == "FAIL" else ""


def judge(folder, library):
    """Returns (state, facts). Ours must work with itself in any case. Mixed pairings run only if the
    reference works with itself, and must work then."""
    state, facts = "ok", []
    for pairing in dict.fromkeys(COLUMNS + AUTO_COLUMNS):
        result = outcome(folder / pairing)
        if not result:
            continue
        word, _, rest = result.partition(" ")
        facts.append(f"{pairing.replace('-', '/')}: {rest}")
        if word == "ok" or (pairing == "reference-reference" and library != "reference"):
            continue
        state = "FAIL" if state == "FAIL" or word != "skip" else "skip"
    return (state, "; ".join(facts)) if facts else ("FAIL", "the lab ended before")


Places = collections.namedtuple("Places", "tools services classes forkserver")


def run_labs(names, device, places, options, folder):
    """Runs the cases of a device. If the lab's kernel panics, which the reference sometimes causes, the
    remaining cases run in another lab. Returns false if there is no such lab."""
    (folder / "finished").unlink(missing_ok=True)
    before, now = -1, 0
    while not (folder / "finished").exists() and now > before:
        entries = []
        for name in names:
            left = [pairing for pairing in pairings(name, options) if not (folder / name / pairing).exists()]
            if left:
                entries.append(f"{name}={','.join(left)}")
        if not entries:
            break
        stacks = "yes" if options.stacks else "no"
        status = run_lab([HERE / "guest", device, *places, options.hang, stacks, options.mode, *entries],
                         lib="reference", reference="65.0", kernel=options.kernel, time_limit=LAB_SECONDS, mem="1500M",
                         out=folder, ib=device == "ib")
        if status == UNAVAILABLE:
            return False
        before, now = now, len(list(folder.glob("**/result")))
    return True


def run_device(programs, device, places, options, results, report):
    """Returns the rows of the table."""
    folder, rows = results / device, []
    folder.mkdir(parents=True, exist_ok=True)
    for old in [path for name in programs for path in (folder / name).glob("*")]:
        if not options.resume or not outcome(old).startswith("ok"):
            shutil.rmtree(old)
    available = run_labs(list(programs), device, places, options, folder)
    for name, program in programs.items():
        title = name.replace("_", "-")
        if not available:
            report.skip(f"{title}-{device}", "the lab has no such kernel or reference")
            continue
        state, facts = judge(folder / name, options.library)
        report.note(state, f"{title}-{device}", facts)
        cells = [cell(outcome(folder / name / pairing), options.mode) for pairing in columns(options)]
        if options.mode == "auto":
            rows.append([title, versions(program, places), device, *cells, program.remark])
        else:
            rows.append([title, device, *cells])
    report.bound_repetitions(f"{device}-repetitions", map(outcome, folder.glob("*/*")))
    return [f"| {' | '.join(row)} |" for row in rows]


def versions(program, places):
    """Returns the versions of a program's packages, of which this machine has those that are not fetched."""
    fetched = {}
    for root in [places.tools, places.services]:
        path = pathlib.Path(f"{root}.packages")
        if path.exists():
            fetched.update(line.split() for line in path.read_text().splitlines())
    texts = []
    for package in program.packages:
        version = fetched.get(package) or subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package], check=False, capture_output=True, text=True).stdout
        texts.append(f"{package} {version}".strip())
    return ", ".join(texts)


def columns(options):
    return AUTO_COLUMNS if options.mode == "auto" else COLUMNS


def write_table(path, rows, options):
    """Replaces the table between the marks of a document. What was not run keeps its row or cell, unless
    the versions of the packages have changed. A file without marks is overwritten."""
    begin = MARKS[options.mode]
    ends = [pairing.replace("-", "/") for pairing in columns(options)]
    titles = ["case", "packages", "device", *ends, "remark"] if options.mode == "auto" else ["program", "device", *ends]
    old = path.read_text() if path.exists() else ""
    head, found, rest = old.partition(f"{begin}\n")
    before, _, tail = rest.partition(END)
    if found:
        rows = merged(before.splitlines()[2:], rows, titles)
    table = "\n".join([f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|", *rows]) + "\n"
    if found:
        table = f"{head}{begin}\n{table}{END}{tail}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table)


def cells_of(row):
    """Returns the cells of a row of a table."""
    return [one.strip() for one in row.strip().removeprefix("|").removesuffix("|").split("|")]


def merged(old, new, titles):
    """Returns the rows of a table with those of this run in place of older ones of the same case."""
    of_pairings = [index for index, title in enumerate(titles) if "/" in title]
    key = [index for index, title in enumerate(titles) if index not in of_pairings and title not in ("packages", "remark")]
    found = {}
    for cells in map(cells_of, old):
        if len(cells) == len(titles):
            found[tuple(cells[index] for index in key)] = cells
    for cells in map(cells_of, new):
        before = found.get(tuple(cells[index] for index in key))
        has_same = before and ("packages" not in titles or before[titles.index("packages")] == cells[titles.index("packages")])
        if has_same:
            cells = [before[index] if index in of_pairings and not cell else cell for index, cell in enumerate(cells)]
        found[tuple(cells[index] for index in key)] = cells
    return [f"| {' | '.join(cells)} |" for cells in found.values()]


def fetch(kind=()):
    """Returns the folder of the programs, or None where they cannot be had."""
    done = subprocess.run([HERE / "packages", "path", *kind], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, UNAVAILABLE):
        sys.exit(1)
    return done.stdout.strip() or None


def compile_java(services):
    """Compiles the programs in Java and returns their folder."""
    to = TOP / "target/preload/java"
    subprocess.run([f"{services}/usr/lib/jvm/java-17-openjdk-amd64/bin/javac", "-d", to, HERE / "apps/Peer.java"], check=True)
    return to


def prepare(test, options, programs):
    """Returns the Places of what the programs need, or None where the packages cannot be had."""
    tools, services, classes = fetch(), "/none", "/none"
    if any(program.services for program in programs.values()):
        services = fetch(["services"])
        classes = services and compile_java(services)
    forkserver = test.values(options)["programs"] / "preload/forkserver"
    return Places(tools, services, classes, forkserver) if tools and services else None


def all_programs(options):
    return {name: program for name, program in read_programs().items() if options.mode in program.modes}


def rows(options):
    return [(name,) for name in choose(list(all_programs(options)), options.only.replace("-", "_"))]


def run(test, options, report):
    table = []
    options.only = options.only.replace("-", "_")
    options.hang = options.hang or (300 if options.library == "ours" or options.mode == "auto" else 40)
    programs = all_programs(options)
    programs = {name: programs[name] for name in choose(list(programs), options.only)}
    if options.library != "reference" and not (ours_dir() / "rsocket/librspreload.so").exists():
        sys.exit(f"no rsocket/librspreload.so in {ours_dir()}: build it first")
    places = prepare(test, options, programs)
    with tempfile.TemporaryDirectory() as scratch:
        for device in [options.device] if options.device else DEVICES:
            if places:
                table += run_device(programs, device, places, options, options.results or pathlib.Path(scratch), report)
            else:
                for name in programs:
                    report.skip(f"{name.replace('_', '-')}-{device}", "the packages are not available here")
    if options.table:
        write_table(pathlib.Path(options.table), table, options)
