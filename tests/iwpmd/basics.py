"""Shared by all tests: timeouts, failures, waiting for conditions."""

import time

# Timeout in seconds for events that must happen; only a hang reaches it.
TIMEOUT = 60


class Failure(Exception):
    """A case has failed; the text is the reason."""


class Skip(Exception):
    """A case cannot run here; the text is the reason."""


def expect(what, got, wanted):
    if got != wanted:
        raise Failure(f"{what}: {got!r} instead of {wanted!r}")


def until(condition, what):
    """Polls until the condition is true: it has no event to wait for."""
    end = time.monotonic() + TIMEOUT
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise Failure(f"{what}: timed out")
        time.sleep(0.02)
