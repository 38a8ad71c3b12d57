"""Placeholders in the commands of tests/suites.toml."""

import re


def fill(words, values):
    """Replaces {NAME} in words. A word that is nothing else becomes several if the value is a list. Empty words at
    the end are left out: options without a value."""
    filled = []
    for word in words:
        alone = re.fullmatch(r"\{(\w+)\}", word)
        if alone and isinstance(values[alone[1]], list):
            filled += map(str, values[alone[1]])
        else:
            filled.append(word.format_map(values))
    while filled and not filled[-1]:
        filled.pop()
    return filled


def fill_option(value, values):
    """Replaces {NAME} in the value of an option of the lab, if it has words."""
    if isinstance(value, list):
        return fill(value, values)
    return value.format_map(values) if isinstance(value, str) else value
