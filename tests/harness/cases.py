"""Choosing cases by name."""

import fnmatch
import subprocess
import sys


def matches(name, patterns):
    """Returns whether --only selects a case: by names or shell patterns, separated by commas; none selects all."""
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split(","))


def choose(names, pattern):
    """Returns the names that --only selects. A pattern that selects nothing is a usage error."""
    chosen = [name for name in names if matches(name, pattern)]
    if not chosen:
        print(f"no case is called {pattern}; --list prints the cases", file=sys.stderr)
        sys.exit(2)
    return chosen


def bash_cases(path, script, **variables):
    """Sources a file of cases, as the guest does, and runs `script`. Returns the lines that it
    prints, split at tabs. `variables` are set before the file is sourced."""
    assignments = [f"{name}={value}" for name, value in variables.items()]
    command = ["env", *assignments, "bash", "-eu", "-c", f'. "$1"\n{script}', "bash", str(path)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [tuple(line.split("\t")) for line in output.splitlines()]
