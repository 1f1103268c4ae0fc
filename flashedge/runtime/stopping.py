"""Stop strings over streamed text, wherever the tokens happen to be cut. Pure."""

from __future__ import annotations


class StopFilter:
    """Passes text on until one of `stops` is whole; the stop string itself is never passed on.

    The stop that is completed first counts (of two that end together, the longer one), so the
    outcome does not depend on how the text is cut into pieces. Text that may be the beginning of
    a stop is held back until that is decided.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may go out now; "" forever once stopped."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, s) for s in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The generation ended: what was held back and belongs to the text after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
