"""What all of the tests use: how long to wait, what a case found wrong."""

import time

# Seconds until something that must happen counts as missing. Only a hang reaches it.
PATIENCE = 60


class Failure(Exception):
    """What a case found wrong."""


class Skip(Exception):
    """Why a case makes no sense here."""


def expect(what, got, wanted):
    if got != wanted:
        raise Failure(f"{what}: {got!r} instead of {wanted!r}")


def until(condition, what):
    """Waits for something that has no event of its own."""
    end = time.monotonic() + PATIENCE
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise Failure(f"{what}: was not reached")
        time.sleep(0.02)
