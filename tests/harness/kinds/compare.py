"""The kind `compare`: each conformance program (tests-c) runs on the reference's library and on ours, in one lab,
and the output is compared. Allowed differences are listed in a file beside the program, NAME.diff
(conformance.read_differences). Programs in */ours run on our library only and print PASS or FAIL for each case."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from ..conformance import is_ours, judge_alone, judge_cases, judge_pair, read_differences, read_hangs, read_programs
from ..lab import BUILT_C, DEVICES, TOP, UNAVAILABLE, build_c, run_lab
from ..options import parser
from ..report import Report

HERE = TOP / "tests-c"
# program: seconds until a hanging program is ended, on which no test depends; hang_factor: HANG_FACTOR of
# cases.h; average: seconds that one program may take on average in a whole run. EMULATED: on arm64.
Limits = collections.namedtuple("Limits", "program hang_factor average")
USUAL, EMULATED = Limits(120, 1, 25), Limits(600, 10, 150)
VALGRIND, SANITIZED = Limits(600, 5, 200), Limits(600, 20, 300)
# For both sanitizers. valgrind checks for leaks; signal handlers free memory only if the interrupted call allocates none;
# threads of a case may still run when its process ends.
SANITIZER_OPTIONS = ("ASAN_OPTIONS=detect_leaks=0:exitcode=99 "
                     "TSAN_OPTIONS=exitcode=0:die_after_fork=0:history_size=5:report_signal_unsafe=0:report_thread_leaks=0"
                     f":suppressions={HERE}/tsan.supp")
# Programs of */ours that run under valgrind too: peers that write arbitrary data into our memory.
# (AddressSanitizer's shadow memory does not fit into the lab's 39-bit address space.) On one device:
# valgrind runs one thread at a time, and so unfairly that a case takes too long on siw, which sends
# and receives in kernel threads.
HOSTILE = {f"peer/ours/{name}" for name in ["raw", "violations", "bad_handshakes", "early_map", "isolation"]}
HOSTILE_DEVICE = "rxe"
# Compared programs that do not: each of their many calls runs in a separate process, which takes
# valgrind seconds to start.
MANY_PROCESSES = {"cm/compared/restricted"}


def parse_options(test, words):
    options = parser(test.data["about"], "lab_device", "reference", "kernel", "cpus", "arch", "list", "repeat",
                     reference="44.0", repeat=0)
    options.add_argument("--only", default="", metavar="PROGRAM[,PROGRAM]",
                         help="only these programs, by name (data), part of the path (rsocket/ours) or path")
    options.add_argument("--lib", default="ours", help="library to compare: ours or a directory")
    options.add_argument("--self", action="store_true", dest="self_mode",
                         help="compare the reference with itself: shows what is not deterministic")
    options.add_argument("--valgrind", action="store_true",
                         help="run ours alone under valgrind: no definite leak, no descriptor left, no error")
    options.add_argument("--ib-connected", action="store_true", help="with --device ib: IPoIB in connected mode")
    options.add_argument("--sanitizer", metavar="RUNTIME",
                         help="run ours alone, which is instrumented (--lib), with this runtime: no report; see scripts/sanitized")
    options.add_argument("--out", default=os.environ.get("TESTS_C_OUT", TOP / "target" / "tests-c"),
                         type=lambda path: pathlib.Path(path).absolute(), help="folder for results")
    options.add_argument("--compared-only", action="store_true", help="without the programs of */ours")
    options.prog = f"tests/run {test.name}"
    options.set_defaults(**test.data.get("defaults", {}))
    options = options.parse_args(words)
    options.label = options.prefix = options.reference_prefix = ""
    options.limits = (VALGRIND if options.valgrind else SANITIZED if options.sanitizer
                      else EMULATED if options.arch == "arm64" else USUAL)
    return options


# ---- programs and differences -------------------------------------------------------------------


def selects(word, program):
    """Whether a word of --only selects a program: consecutive parts of its path."""
    return f"/{word.strip('/')}/" in f"/{program}/"


def choose(programs, options):
    """The programs that the options select, [(program, device)]."""
    words = [word for word in options.only.split(",") if word]
    unknown = [word for word in words if not any(selects(word, program) for program in programs)]
    if unknown:
        print("no such program: " + ", ".join(unknown), file=sys.stderr)
        sys.exit(2)
    wanted = [options.device] if options.device else DEVICES
    return [(program, device) for program, devices in programs.items() for device in devices
            if (not words or any(selects(word, program) for word in words))
            and device in wanted and not (options.compared_only and is_ours(program))]


# ---- running ------------------------------------------------------------------------------------


def build(options, chosen):
    """Builds the chosen programs and returns their folder."""
    targets = [*dict.fromkeys(program for program, _ in chosen), "shims/failmalloc.so"]
    if options.arch == "arm64":
        root = prepare_arm64("tests/lab/other-debian", "path", "arm64")
        if options.lib == "ours":
            prepare_arm64("scripts/build-arm64")
        variables = [f"CC=aarch64-linux-gnu-gcc --sysroot={root}", "AR=aarch64-linux-gnu-ar"]
        return build_c(*targets, out=BUILT_C / "arm64", variables=variables)
    return build_c(*targets)


def prepare_arm64(*command):
    """Runs what the comparison on arm64 needs and returns its output. Exits with status 77 where it cannot be had."""
    done = subprocess.run([TOP / command[0], *command[1:]], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, end="")
        sys.exit(UNAVAILABLE if done.returncode == UNAVAILABLE else "arm64 cannot be prepared")
    return done.stdout.strip()


def result_name(tag, program, device):
    return f"{tag}.{program.replace('/', '.')}.{device}"


def guest_script(jobs, options, folder):
    """Returns the shell script for one boot: every program with every library, each with its own time limit."""
    lines = ["cd /"]
    if options.sanitizer:
        # The runtimes need fewer random bits in addresses than newer kernels use.
        lines.append("sysctl -q vm.mmap_rnd_bits=28")
    for tag, runner, program, device, extra in jobs:
        base = f"$LAB_OUT/{result_name(tag, program, device)}"
        log = f"--log-file={base}.%p.valgrind" if options.valgrind else ""
        run = (f"SECONDS=0; HANG_FACTOR={options.limits.hang_factor} {runner} "
               f"timeout -s KILL {options.limits.program} {extra} {log} "
               f"{options.programs}/{program} {device} >{base}.out 2>{base}.err; "
               f"echo $? $SECONDS >{base}.status")
        lines.append(run)
    path = pathlib.Path(folder) / "guest.sh"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fabric(devices):
    """Returns the lab's options for the devices. `fabric` is InfiniBand with partitions and several paths, `ports`
    with a second port of the far host."""
    devices = set(devices)
    if "fabric" in devices:
        return {"ib": True, "ib_lmc": 1, "ib_partitions": HERE / "fabric/partitions.conf"}
    if "ports" in devices:
        return {"ib": True, "ib_module": "ports=1,2"}
    return {"ib": "ib" in devices}


def run_jobs(jobs, options, folder, result):
    """Runs programs in one lab. Returns false if there is no such lab."""
    library = "reference" if options.self_mode else options.lib
    if library not in ("ours", "reference"):
        # Each job names its library; "ours" is this one.
        os.environ["LAB_OURS_DIR"] = os.path.realpath(library)
    seconds = 60 + sum(options.limits.average * (4 if device in ("fabric", "ports") else 1) for _, _, _, device, _ in jobs)
    status = run_lab(["bash", guest_script(jobs, options, folder)], lib=library, reference=options.reference,
                     kernel=options.kernel, cpus=options.cpus, arch=options.arch, time_limit=seconds, out=folder,
                     mem="2G" if options.sanitizer else None, ib_connected=options.ib_connected,
                     **fabric(device for _, _, _, device, _ in jobs))
    return result.lab_ended(" ".join(["lab", *dict.fromkeys(device for _, _, _, device, _ in jobs)]), status)


def read_result(folder, tag, program, device):
    """Returns (lines, status, stderr) of one run; the status is None if it did not run. The .status file
    also holds the duration in seconds, which helps to find slow programs."""
    base = os.path.join(folder, result_name(tag, program, device))

    def text(suffix):
        try:
            with open(base + suffix, encoding="utf-8", errors="replace") as result:
                return result.read()
        except FileNotFoundError:
            return ""

    status = text(".status").split()
    return text(".out").splitlines(), int(status[0]) if status else None, text(".err")


# ---- comparing ----------------------------------------------------------------------------------


def compare_outputs(name, first, second, entries, result, known_hang=""):
    """Judges one pair of runs."""
    verdict = judge_pair(first, second, entries, known_hang)
    if verdict.state == "ok":
        result.lines += len(first[0])
    result.note(verdict.state, name, verdict.facts, verdict.detail)


def compare_all(programs, options, folder, result):
    repeat, hangs = options.repeat or (2 if options.self_mode else 1), read_hangs(HERE)
    jobs = []
    for program, device in programs:
        for turn in range(repeat):
            jobs.append((f"reference{turn}", "lab-reference", program, device, options.reference_prefix))
            if not options.self_mode:
                jobs.append((f"ours{turn}", "lab-ours", program, device, options.prefix))
    available = run_jobs(jobs, options, folder, result)
    for program, device in programs:
        if not available:
            result.skip(f"{program} {device} {options.reference}{options.label}", "the lab has no such kernel or reference")
            continue
        entries = [] if options.self_mode else \
            [entry for entry in read_differences(HERE, program) if entry.applies(device, options.reference, options.kernel)]
        pairs = [("reference0", f"reference{turn}") for turn in range(1, repeat)] if options.self_mode else \
            [(f"reference{turn}", f"ours{turn}") for turn in range(repeat)]
        for turn, pair in enumerate(pairs):
            for entry in entries:
                entry.seen = False
            name = f"{program} {device} {options.reference}{options.label}" + (f" #{turn + 1}" if len(pairs) > 1 else "")
            first, second = (read_result(folder, tag, program, device) for tag in pair)
            known_hang = hangs.get((program, device, options.reference), "")
            compare_outputs(name, first, second, entries, result, known_hang)


def judge_pass_fail(name, outcome, result):
    verdict = judge_cases(outcome)
    result.note(verdict.state, name, verdict.facts, verdict.detail)
    return verdict


def run_ours(programs, options, folder, result):
    tags = [f"ours{turn}" for turn in range(options.repeat or 1)]
    available = run_jobs([(tag, "lab-ours", program, device, "") for program, device in programs for tag in tags],
                         options, folder, result)
    for program, device in programs:
        if not available:
            result.skip(f"{program} {device}", "the lab has no such kernel or reference")
            continue
        for turn, tag in enumerate(tags):
            name = f"{program} {device}" + (f" #{turn + 1}" if len(tags) > 1 else "")
            verdict = judge_pass_fail(name, read_result(folder, tag, program, device), result)
            for case, why in verdict.skipped:
                result.skip(f"{name} {case}", why)


def judge_checked(name, program, outcome, problems, good, result):
    """Judges a run beside a checker, which found these problems. A program that was skipped has not been checked."""
    verdict = judge_cases(outcome) if is_ours(program) else judge_alone(outcome)
    if problems or verdict.state == "FAIL":
        facts = verdict.facts if verdict.state == "FAIL" else "see below"
        result.fail(name, facts, (list(verdict.detail) + problems)[:80])
    elif verdict.state == "skip":
        result.skip(name, verdict.facts)
    else:
        result.ok(name, good)


# ---- valgrind -----------------------------------------------------------------------------------


def valgrind_problems(folder, tag, program, device):
    """Errors, definite leaks and open descriptors in the logs of one program's processes. A
    forked child has its parent's descriptors, so those are judged in the parent's log alone."""
    prefix = result_name(tag, program, device) + "."
    problems, logs = [], 0
    names = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(".valgrind")]
    for name in sorted(names, key=lambda name: int(name.split(".")[-2])):
        logs += 1
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as log:
            text = re.sub(r"^==\d+== ?", "", log.read(), flags=re.M)
        for block in re.split(r"\n\s*\n", text):
            leaked = "definitely lost in loss record" in block
            invalid = re.search(r"^(Invalid|Conditional|Use of|Syscall param|Mismatched|Process terminating)", block, re.M)
            # The reactor of rsockets lives as long as the process, and its descriptors with it; so
            # does the table for rsstat.
            own = "<inherited from parent>" in block or "rsocket::reactor::" in block
            own |= "rsocket::socket_table::" in block
            # Devices stay open until the process ends: other threads of the program may use them.
            own |= "cm::device_registry::" in block
            open_fd = logs == 1 and block.startswith("Open ") and not own
            if leaked or invalid or open_fd:
                problems += block.splitlines()[:12] + [""]
    return problems if logs else ["no valgrind log"]


def run_valgrind(programs, options, folder, result):
    runner = "lab-reference" if options.self_mode else "lab-ours"
    flags = ("valgrind --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite "
             f"--track-fds=yes --suppressions={HERE}/valgrind.supp")
    available = run_jobs([("v", runner, program, device, flags) for program, device in programs], options, folder,
                         result)
    for program, device in programs:
        name = f"valgrind {program} {device}"
        if not available:
            result.skip(name, "the lab has no such kernel or reference")
            continue
        judge_checked(name, program, read_result(folder, "v", program, device),
                      valgrind_problems(folder, "v", program, device),
                      "no error, no definite leak, no descriptor left", result)


# ---- sanitizers ---------------------------------------------------------------------------------


def run_sanitized(programs, options, folder, result):
    command = f"env LD_PRELOAD={options.sanitizer} {SANITIZER_OPTIONS}"
    available = run_jobs([("s", "lab-ours", program, device, command) for program, device in programs], options,
                         folder, result)
    for program, device in programs:
        name = f"sanitized {program} {device}"
        if not available:
            result.skip(name, "the lab has no such kernel or reference")
            continue
        outcome = read_result(folder, "s", program, device)
        reports = re.findall(r"^(?:SUMMARY: .*|WARNING: ThreadSanitizer.*|.*ERROR: AddressSanitizer.*)$", outcome[2], re.M)
        judge_checked(name, program, outcome, reports, "no report", result)


# ---- main ---------------------------------------------------------------------------------------


class Result(Report):
    """Counts the compared lines as well."""

    lines = 0


def runs_under_valgrind(program, device, options):
    if is_ours(program):
        return program in HOSTILE and device == HOSTILE_DEVICE and not options.self_mode
    return program not in MANY_PROCESSES


def main(test, words):
    options = parse_options(test, words)
    chosen = choose(read_programs(HERE), options)
    if options.list and "modes" in test.data:
        for mode, wanted in modes(test, chosen):
            for program, device in wanted:
                print(program, device, mode["name"])
        return 0
    if options.list:
        for program in dict.fromkeys(program for program, _ in chosen):
            print(program, *(device for name, device in chosen if name == program))
        return 0
    options.programs, result = build(options, chosen), Result()
    if "modes" in test.data:
        run_modes(test, chosen, options, result)
    else:
        run(chosen, options, options.out / f"results-{options.reference}-{options.kernel}", result)
    if result.lines:
        print(f"{result.lines} observation lines compared")
    return result.finish()


def modes(test, chosen):
    """Returns [(mode, [(program, device)])]."""
    return [(mode, [(program, device) for program, device in chosen if device in mode["devices"].split()
                    and program.removeprefix("cm/compared/") in mode["programs"].split()]) for mode in test.data["modes"]]


def run_modes(test, chosen, options, result):
    """Runs the programs with the test's shared object, in each of its modes: OLDKERNEL is its name. The reference runs
    without, if it does not support the mode."""
    build_c(test.data["preload"])
    for mode, wanted in modes(test, chosen):
        options.label = f" {mode['name']}"
        options.prefix = f"env LD_PRELOAD={options.programs}/{test.data['preload']} OLDKERNEL={mode['name']}"
        options.reference_prefix = "" if mode.get("ours_only") else options.prefix
        if wanted:
            run(wanted, options, options.out / mode["name"], result)


def run(chosen, options, folder, result):
    """Runs [(program, device)] and copies the results to the folder."""
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=options.out) as work:
        if options.valgrind:
            parts = [(run_valgrind, [entry for entry in chosen if runs_under_valgrind(*entry, options)])]
        elif options.sanitizer:
            parts = [(run_sanitized, chosen)]
        else:
            parts = [(compare_all, [entry for entry in chosen if not is_ours(entry[0])])]
            if not options.self_mode:
                parts.append((run_ours, [entry for entry in chosen if is_ours(entry[0])]))
        for run, programs in parts:
            if programs:
                run(programs, options, work, result)
        # Another run may copy at the same time (tests/mutants/run -j).
        shutil.copytree(work, folder, dirs_exist_ok=True)
