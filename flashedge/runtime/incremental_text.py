"""Turns generated ids into text while they arrive."""

from __future__ import annotations

from flashedge.engine.base import Codec
from flashedge.types import TokenIds


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
        before = self._codec.decode(self._ids[self._start : self._num_emitted])
        now = self._codec.decode(self._ids[self._start :])
        if now.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""  # the character is not complete yet
        self._start, self._num_emitted = self._num_emitted, len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """Return what `feed` held back: an incomplete character at the very end."""
        before = self._codec.decode(self._ids[self._start : self._num_emitted])
        now = self._codec.decode(self._ids[self._start :])
        self._num_emitted = len(self._ids)
        return now[len(before) :]
