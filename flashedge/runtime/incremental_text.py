"""Turns generated ids into text while they arrive."""

from __future__ import annotations

from flashedge.engine.base import Codec
from flashedge.types import TokenIds

_CHARACTER = 3
"""Most ids of an incomplete character: a character has four bytes at most."""
_MOST_HELD = 64
"""Ids that may wait for the rest of a character. Where more do, such as behind bytes that are no
text, all but the last three are told, so that the window stays short."""


class IncrementalText:
    """Turns streamed ids into text, never half a character.

    Decodes a short window with and without the new ids and returns the difference, so that the text
    is right for tokenizers whose pieces depend on their neighbours.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._start = 0  # of the window
        self._num_emitted = 0  # ids whose text was returned

    def feed(self, token_ids: TokenIds) -> str:
        self._ids += token_ids
        return self._emit(self._find_whole())

    def flush(self) -> str:
        """Return what `feed` held back: an incomplete character at the very end."""
        return self._emit(len(self._ids))

    def look(self) -> str:
        """What `flush` would return."""
        return self._decode(len(self._ids))[len(self._decode(self._num_emitted)) :]

    def _find_whole(self) -> int:
        """Up to which id the text can be told."""
        last = len(self._ids)
        if self._is_whole(last):
            return last
        if last - self._num_emitted <= _MOST_HELD:
            return self._num_emitted
        ends = range(last - 1, last - _CHARACTER - 1, -1)
        return next((end for end in ends if self._is_whole(end)), ends[-1])

    def _is_whole(self, end: int) -> bool:
        return not self._decode(end).endswith("\N{REPLACEMENT CHARACTER}")

    def _emit(self, end: int) -> str:
        text = self._decode(end)[len(self._decode(self._num_emitted)) :]
        if end > self._num_emitted:
            self._start, self._num_emitted = self._num_emitted, end
        return text

    def _decode(self, end: int) -> str:
        return self._codec.decode(self._ids[self._start : end])
