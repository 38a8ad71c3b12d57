"""Progress of a run of several parts, with an estimate of the remaining time."""


class Progress:
    """`last` has the duration of each part in the last run, in seconds, if known."""

    def __init__(self, names, last, at_once=1):
        self.left, self.number, self.last, self.at_once = set(names), len(names), last, at_once

    def ended(self, name):
        self.left.discard(name)

    def __str__(self):
        """Returns `[7 of 29, about 12 min left]`, or an empty string for a single part."""
        if self.number < 2:
            return ""
        text = f"{self.number - len(self.left)} of {self.number}"
        if self.left and all(name in self.last for name in self.left):
            seconds = sum(self.last[name] for name in self.left) / self.at_once
            text += f", about {int(seconds) // 60 + 1} min left"
        return f"[{text}]"
