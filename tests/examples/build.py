"""Builds the programs of docs/examples/ by the lines of its README."""

import re
import subprocess

from harness import TOP, ours_dir

EXAMPLES, BUILT = TOP / "docs/examples", TOP / "target/examples"


def prepare(_test, _options, report, _values):
    """Builds each program by its line. Warnings are errors here, not for users."""
    lines = re.findall(r"^    (cc -o (\w+) .*)$", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.M)
    sources = {source.stem for source in EXAMPLES.glob("*.c")}
    if {name for _, name in lines} != sources:
        report.fail("README", f"has no line for each of {sorted(sources)}")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{TOP / 'include'}", f"-L{ours_dir()}"]
    BUILT.mkdir(parents=True, exist_ok=True)
    for line, name in lines:
        (BUILT / name).unlink(missing_ok=True)
        command = [word if word != name else str(BUILT / name) for word in line.split()]
        built = subprocess.run([*command, *flags], cwd=EXAMPLES, check=False, capture_output=True, text=True)
        if built.returncode:
            report.fail(name, "does not build", detail=built.stderr.splitlines()[:10])
        else:
            report.ok(name, "built")
    return {"built": BUILT}
