"""What a C program of cases prints (tests-c/cases.h): a line `PASS|FAIL|SKIP|LEFT NAME: facts` for each case,
`CASES N`, their declared number, and `[end] complete`. LEFT: the case does not exist on this device, or was not
asked for."""

import re

RESULT = re.compile(r"(PASS|FAIL|SKIP|LEFT) ([^:]+)(?:: (.*))?")
DECLARED = re.compile(r"CASES (\d+)")
END = "[end] complete"
# A preparation that failed (SETUP of tests-c/common.h): what the case observed afterwards says nothing.
UNPREPARED = re.compile(r"\[[^]]*\] setup(?: failed)?: ")


def is_skipped(lines):
    """Whether a whole program was skipped: it has printed the reason and nothing else."""
    return len(lines) == 1 and lines[0].startswith("SKIP ")


def unprepared(lines):
    return [line for line in lines if UNPREPARED.match(line)]


class Results:
    """Adds up the lines of one run."""

    def __init__(self, lines=()):
        self.names = {"PASS": {}, "FAIL": {}, "SKIP": {}, "LEFT": {}}
        self.declared, self.last, self.unprepared = None, "", []
        for line in lines:
            self.add(line)

    def add(self, line):
        """Returns (word, the rest of the line) if the line is a result."""
        line = line.rstrip("\r\n")
        self.last = line
        self.unprepared += unprepared([line])
        if found := DECLARED.fullmatch(line):
            # A program that prints two numbers is not one run of one program.
            self.declared = int(found[1]) if self.declared is None else -1
        found = RESULT.fullmatch(line)
        if not found:
            return None
        self.names[found[1]][found[2]] = found[3] or ""
        return found[1], line[5:]

    def trouble(self):
        """Returns why these results are not those of a complete run; an empty text if they are."""
        names = set().union(*self.names.values())
        if self.last != END:
            return "ended early"
        if self.declared is None:
            return "declares no number of cases"
        if len(names) != self.declared:
            return f"results of {len(names)} cases, {self.declared} are declared"
        if not any(self.names[word] for word in ["PASS", "FAIL", "SKIP"]):
            return "no case ran"
        if self.unprepared:
            return self.unprepared[0]
        return ""
