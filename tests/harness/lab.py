"""Starts the lab, and builds C programs for it."""

import fcntl
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
DEVICES = ["rxe", "siw"]
# Where programs of tests-c are built.
BUILT_C = TOP / "target/tests-c"
# Exit status of tests/lab/run if a kernel or a version of the reference is not available on this machine.
UNAVAILABLE = 77
# Exit statuses if the time limit was reached, and if the lab itself failed: its kernel crashed, or warned.
LAB_FAILED = {124: "reached its time limit", 125: "failed"}


def lab_command(command, **options):
    """Returns the command line that runs `command` in the lab. Options are those of tests/lab/run, with `_`
    for `-`: True sets a flag; None and False omit the option; a list repeats it."""
    words = [TOP / "tests/lab/run"]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one not in (None, False):
                words += ["--" + name.replace("_", "-")] + ([] if one is True else [str(one)])
    return list(map(str, [*words, "--", *command]))


def run_lab(command, log=None, **options):
    """Runs `command` in the lab and returns its exit status. `log`: a file for the output."""
    if log is None:
        return subprocess.run(lab_command(command, **options), check=False).returncode
    with open(log, "w", encoding="utf-8") as output:
        return subprocess.run(lab_command(command, **options), check=False,
                              stdout=output, stderr=subprocess.STDOUT).returncode


def start_lab(command, merge_stderr=True, **options):
    """Starts `command` in the lab. Returns the Popen; its stdout is line buffered."""
    return subprocess.Popen(lab_command(command, **options), stdout=subprocess.PIPE, text=True, errors="replace",
                            stderr=subprocess.STDOUT if merge_stderr else None)


def dist_dir():
    """Returns the folder into which make built, given the same variables."""
    target = os.environ.get("CARGO_TARGET_DIR") or "target"
    return (TOP / (os.environ.get("DIST") or f"{target}/dist")).resolve()


def ours_dir():
    """Returns the folder of the project's library."""
    return pathlib.Path(os.environ.get("LAB_OURS_DIR") or dist_dir() / "lib").resolve()


def build_c(*targets, out=None, variables=()):
    """Builds programs of tests-c, or a target of its Makefile, and returns the folder. Exits if that fails. Suites that
    run at the same time share the folder."""
    out = pathlib.Path(out or BUILT_C).resolve()
    out.mkdir(parents=True, exist_ok=True)
    words = [str(out / target) if "/" in target else target for target in targets]
    with open(out / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-s", "-C", TOP / "tests-c", f"OUT={out}", "-j2", *variables, *words]
        if subprocess.run(command, check=False).returncode:
            sys.exit("tests-c: the programs do not build")
    return out
