"""The table of automatic mode in docs/preload-internals.md, from the lines of its cases."""

import pathlib
import re

MARKS = ("<!-- matrix of automatic mode -->\n", "<!-- end of the matrix -->\n")


def write_matrix(path, cases):
    """Replaces the table between the marks of a document: a row for each pair of ends, a column for each address."""
    cells, places = {}, {}
    for case in cases:
        if found := re.fullmatch(r"(ok|FAIL)\s+matrix (\w+) server, (\w+) client, (\S+): (.*)", case):
            cells.setdefault((found[2], found[3]), {})[found[4]] = found[5] if found[1] == "ok" else f"**{found[5]}**"
            places[found[4]] = True
    rows = [["server", "client", *places]] + [[*ends, *(row.get(place, "") for place in places)] for ends, row in cells.items()]
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    head, _, rest = path.read_text().partition(MARKS[0])
    lines.insert(1, "| --- " * len(rows[0]) + "|\n")
    path.write_text("".join([head, MARKS[0], *lines, MARKS[1], rest.partition(MARKS[1])[2]]))


def finish(_test, options, _report, _values, lines):
    if options.table:
        write_matrix(pathlib.Path(options.table), lines)
