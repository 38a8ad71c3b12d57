"""The kind `relay`: a lab for each device, library or part, where a program prints the result of each case."""

from ..lab import start_lab
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
    data, name = test.data, "-".join(one.values()) or "lab"
    command, where = fill(data["command"], values), test.lab(options, values, one)
    if data.get("prints") != "program":
        return report.relay_lab(name, start_lab(command, **where), len(values.get("cases", ())) or data.get("number"))
    report.relay_program(name, start_lab(command, **where))
    if getattr(options, "unjudged", False):
        with start_lab(command, **{**where, **data["unjudged"], "env": fill(data["unjudged"]["env"], values)}) as lab:
            report.detail("unjudged: " + line for line in lab.stdout)
    return []
