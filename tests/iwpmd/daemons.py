"""Which daemons the cases run with, and the kernel module that makes soft-iWARP request ports from them."""

import os
import subprocess

from harness import TOP, dist_dir


def resolve(daemon):
    """Returns [kind, path] of a daemon. The reference's is at its usual path in the lab."""
    if daemon == "reference":
        return ["reference", "/usr/sbin/iwpmd"]
    if daemon == "ours":
        daemon = os.environ.get("IWPMD") or dist_dir() / "sbin/iwpmd"
    return ["ours", os.path.realpath(daemon)]


def mapped(kernel):
    done = subprocess.run([TOP / "tests/lab/module", "path", kernel], check=False, stdout=subprocess.PIPE, text=True)
    return "none" if done.returncode else done.stdout.strip()


def prepare(_test, options, report, values):
    kind, path = resolve(options.daemon)
    if kind == "ours" and not os.access(path, os.X_OK):
        for name in values["cases"]:
            report.skip(name, f"there is no {path}")
        return None
    # The guest has the same files, so that it runs the same interpreter, by its real name.
    return {"python": os.path.realpath(values["python"]), "tested": [kind, path], "other": resolve(getattr(options, "with")),
            "mapped": mapped(options.kernel)}
