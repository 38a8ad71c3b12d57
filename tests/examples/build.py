"""Builds a copy of the programs of docs/examples/ with their Makefile."""

import shutil
import subprocess

from harness import TOP, ours_dir

EXAMPLES, BUILT = TOP / "docs/examples", TOP / "target/examples"


def prepare(_test, _options, report, _values):
    """Builds each program, as a user does with a copy. Warnings are errors here, not for users."""
    shutil.rmtree(BUILT, ignore_errors=True)
    BUILT.mkdir(parents=True)
    programs = [source.stem for source in sorted(EXAMPLES.glob("*.c"))]
    for name in ["Makefile", *(f"{name}.c" for name in programs)]:
        shutil.copy(EXAMPLES / name, BUILT)
    variables = ["CFLAGS=-O2 -Wall -Wextra -Wpedantic -Werror", f"CPPFLAGS=-I{TOP / 'include'}", f"LDFLAGS=-L{ours_dir()}"]
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in programs:
        built = subprocess.run(["make", name, *variables], cwd=BUILT, check=False, capture_output=True, text=True)
        if built.returncode:
            report.fail(name, "does not build", detail=built.stderr.splitlines()[:10])
        elif f"[{name}.c]" not in readme:
            report.fail(name, "is not in the README")
        else:
            report.ok(name, "built")
    return {"built": BUILT}
