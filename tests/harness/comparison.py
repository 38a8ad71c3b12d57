"""Comparison of the results of two libraries."""

import difflib


def hunks(first, second):
    """Yields (removed lines, added lines) for each place where two lists of lines differ."""
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            yield first[a:b], second[c:d]


def difference(first, second):
    """Returns the differing lines in the form of diff(1): "<" the first list, ">" the second."""
    lines = []
    for removed, added in hunks(first, second):
        lines += ["< " + line for line in removed] + ["> " + line for line in added]
    return lines
