"""Command line options shared by several tests."""

import argparse
import pathlib

from .lab import DEVICES

KNOWN = {
    "device": {"choices": [*DEVICES, "ib"], "help": "only on this device"},
    "lab_device": {"flag": "--device", "choices": [*DEVICES, "ib", "fabric", "ports"],
                   "help": "only on this device (default: rxe and siw); fabric: InfiniBand with partitions; ports: with two ports"},
    "only": {"metavar": "CASE[,CASE]", "default": "", "help": "only these cases (patterns such as 'name*' are possible)"},
    "reference": {"choices": ["44.0", "65.0", "newest"], "type": lambda version: {"newest": "65.0"}.get(version, version),
                  "help": "version of the reference; newest, or 65.0: 65.0 or newer, as found"},
    "kernel": {"default": "6.1", "help": "kernel of the lab: 6.1, 7.2, debian or debian-6.12 (6.1)"},
    "cpus": {"type": int, "metavar": "N", "help": "processors of the lab, with kernel debian (2)"},
    "arch": {"choices": ["x86-64", "arm64"], "default": "x86-64",
             "help": "processors of the lab (x86-64); arm64 with kernel debian"},
    "results": {"metavar": "DIR", "type": lambda path: pathlib.Path(path).resolve(),
                "help": "keep the results in DIR"},
    "repeat": {"type": int, "default": 1, "metavar": "N", "help": "run everything so many times (1)"},
    "list": {"action": "store_true", "help": "print the cases"},
}


def parser(description, *names, **defaults):
    """Returns a parser with the named options; `defaults` override their defaults."""
    made = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        settings = dict(KNOWN[name])
        made.add_argument(settings.pop("flag", "--" + name), **settings)
    made.set_defaults(**defaults)
    return made
