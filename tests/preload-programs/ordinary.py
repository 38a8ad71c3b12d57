"""What ordinary programs run with, and the times of calls on this machine."""

import pathlib
import subprocess

from harness import ours_dir

HERE = pathlib.Path(__file__).resolve().parent
GROUPS = ["programs", "python", "overhead"]


def folder_of(library):
    return ours_dir() if library == "ours" else pathlib.Path("/usr/lib/x86_64-linux-gnu")


def prepare(_test, options, report, _values):
    folder = folder_of(options.library)
    if options.library == "ours" and not (folder / "rsocket/librspreload.so").exists():
        report.fail("librspreload", f"is not in {folder}: build it first")
        return None
    packages = subprocess.run([HERE / "packages", "path"], check=False, stdout=subprocess.PIPE, text=True)
    return {"preloaded": folder, "tools": "/none" if packages.returncode else packages.stdout.strip(),
            "groups": [options.only] if options.only else GROUPS}


def finish(_test, options, _report, values, _lines):
    """Measures on the host, with realistic times of system calls. A kernel socket replaces the rsocket."""
    preload, programs = folder_of(options.library) / "rsocket/librspreload.so", values["programs"] / "preload"
    if options.only in (None, "overhead") and preload.exists():
        subprocess.run([HERE / "overhead-rounds", programs / "overhead", preload, programs, "1000", "on this machine"], check=True)
