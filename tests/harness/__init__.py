"""Shared code of the programs that run tests: reports, the lab, choosing cases, comparing, progress.

Uses the standard library only. Programs on the host use this package; programs in the lab are bash scripts.
"""

from .cases import bash_cases, choose, matches
from .comparison import difference, hunks
from .lab import DEVICES, TOP, UNAVAILABLE, build_c, dist_dir, ours_dir, run_lab, start_lab
from .options import parser
from .report import Report, counts

__all__ = ["DEVICES", "TOP", "UNAVAILABLE", "Report", "bash_cases", "build_c", "choose", "counts", "difference",
           "dist_dir", "hunks", "matches", "ours_dir", "parser", "run_lab", "start_lab"]
