"""Finds stop strings in streamed text, however it is cut into pieces. Pure."""

from __future__ import annotations


class StopFilter:
    """Passes text on until one of `stops` is complete. Never passes on the stop string itself.

    The stop that is completed first counts, of two that end together the longer one, so the result
    does not depend on how the text is cut. Text that may begin a stop is held back until it is
    clear whether it does.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take new text in. Returns the text to pass on, always empty once stopped."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        keep = max((count_overlap(text, s) for s in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back, when the generation has ended."""
        held, self._held = self._held, ""
        return held


def count_overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
