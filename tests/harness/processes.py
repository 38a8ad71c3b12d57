"""What the processes of a fault case (tests/faults) printed, and how they ended, in a form that can be compared."""

import re

# rping's event thread ends the process when something failed, before or after the other thread
# has reported what it was waiting for; it reports a disconnection unless the other thread is faster, and
# on InfiniBand the end of the time in which its QP number is not used again.
LEFT_OUT = re.compile("(client|server) DISCONNECT EVENT|wait for [A-Z_]+ state|connect error -1|"
                      "unhandled event: RDMA_CM_EVENT_TIMEWAIT_EXIT")
# libibverbs without descriptors, once for each provider, in the order of the folder.
PROVIDER_WARNING = re.compile("libibverbs: Warning: couldn't read config file ")


def lines(path):
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def lost(seen):
    """Returns why what was observed shows nothing, also if both libraries have it; an empty text if it shows something."""
    if not any(": status " in line for line in seen):
        return "no process ran"
    return next((line for line in seen if line.startswith("lab: ")), "")


def observe(folder):
    """Returns the output and exit status of each process of a case. ucmatose and rping buffer some of
    their lines, so these are sorted."""
    seen = ["lab: " + line for line in lines(folder / "troubles")]
    for path in sorted(folder.glob("*.status")):
        name, output = path.stem, lines(path.with_suffix(".out"))
        output = [line for line in output if not PROVIDER_WARNING.match(line)]
        seen.append(f"{name}: status {' '.join(lines(path))}")
        if output and output[0].startswith(f"{name}: "):
            seen += output
        else:
            seen += sorted(f"{name}: {line}" for line in output if not LEFT_OUT.match(line))
    return seen
