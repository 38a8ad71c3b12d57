"""Runs the cases in the lab: guest.py SHIM MODULE KIND PATH OTHER_KIND OTHER_PATH CASE...

Prints ok|FAIL|skip NAME: facts for each. See README.md.
"""

import sys
import time
import traceback

import cases_hostile
import cases_kernel
import cases_netlink
import cases_pairs
import cases_process
import cases_query
import cases_soak
import cases_wire
from basics import Failure, Skip
from world import World

MODULES = cases_process, cases_kernel, cases_netlink, cases_wire, cases_query, cases_pairs, cases_hostile, cases_soak


def cases():
    """Returns {name: function} in the order of the files."""
    found = {}
    for module in MODULES:
        group = module.__name__.removeprefix("cases_")
        for name, value in vars(module).items():
            if name.startswith("case_"):
                found[f"{group}-{name.removeprefix('case_')}"] = value
    return found


def run(world, name, function):
    begin = time.monotonic()
    try:
        facts = function(world)
        result = "ok"
        for daemon in world.daemons:
            daemon.alive() if daemon.stays else None
    except Skip as why:
        result, facts = "skip", str(why)
    except Failure as why:
        result, facts = "FAIL", str(why)
    except Exception:  # a mistake in the case, or an unexpected failure
        result, facts = "FAIL", traceback.format_exc().replace("\n", " | ")
    world.tidy()
    print(f"{result:4} {name}: {facts or 'as specified'}, {time.monotonic() - begin:.1f} s", flush=True)


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(cases()))
        return
    shim, module, kind, path, other_kind, other_path, *names = sys.argv[1:]
    world = World((kind, path), (other_kind, other_path), shim, module)
    for name in names:
        run(world, name, cases()[name])
    print("all ran", flush=True)


main()
