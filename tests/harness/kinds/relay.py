"""The kind `relay`: a lab for each device, library or part, where a program prints the result of each case."""

from ..lab import UNAVAILABLE, start_lab
from ..words import fill


def run(test, options, report):
    data, values = test.data, test.values(options)
    hooks = test.module() if "module" in data else None
    if "cases" in data:
        values["cases"] = [row[0] for row in test.choose(options)]
    if hooks and hasattr(hooks, "prepare"):
        more = hooks.prepare(test, options, report, values)
        if more is None:
            return
        values.update(more)
    lines = []
    for one in test.rounds(options):
        lines += run_lab_of(test, options, {**values, **one}, one, report)
    if hooks and hasattr(hooks, "finish"):
        hooks.finish(test, options, report, values, lines)


def run_lab_of(test, options, values, one, report):
    """Runs one lab, and returns the lines of its cases."""
    command, where, name = fill(test.data["command"], values), test.lab(options, values, one), "-".join(one.values()) or "lab"
    if test.data.get("prints") != "program":
        return report.relay_lab(name, start_lab(command, **where))
    relay_program(name, start_lab(command, **where), report)
    if getattr(options, "unjudged", False):
        with start_lab(command, **{**where, **test.data["unjudged"], "env": fill(test.data["unjudged"]["env"], values)}) as lab:
            report.detail("unjudged: " + line for line in lab.stdout)
    return []


def relay_program(name, lab, report):
    """Relays PASS, FAIL and SKIP lines of a C program, which must run to its end."""
    before = report.number["FAIL"]
    with lab:
        complete = report.relay_program(lab.stdout, name)
    if lab.returncode == UNAVAILABLE:
        report.skip(name, "the lab cannot run here")
    elif not complete or (lab.returncode and report.number["FAIL"] == before):
        report.fail(name, f"the run was cut short: status {lab.returncode}")
