"""The simulated model's vocabulary: one token a word, one a blank line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from zlib import crc32

from flashedge.engine.base import NO_VARIABLES
from flashedge.search.steps import BoundaryRule
from flashedge.types import BLANK_LINE as BLANK_LINE_RULE
from flashedge.types import MARKERS, TOKENS, Message, TokenIds

EOS, BLANK_LINE, SEPARATOR, NEXT, THEREFORE = 0, 1, 2, 3, 4
SYSTEM, USER, ASSISTANT = 5, 6, 7
BOXED, NUM_ANSWERS = 16, 100  # one token for each \boxed{k}
WORDS, NUM_WORDS = 256, 1024  # w0 … w1023: what a step is made of
ROWS, NUM_ROWS = 2048, 4096  # #0, #1, …: names a row of the trace
HASHED, VOCAB = 8192, 32768  # any other word, by hash

_NEVER = BoundaryRule(holds=frozenset(), closes=frozenset(), opens=frozenset(), blank=frozenset())
RULES: Mapping[str, BoundaryRule] = MappingProxyType(
    {
        BLANK_LINE_RULE: replace(_NEVER, holds=frozenset({BLANK_LINE})),
        MARKERS: replace(_NEVER, holds=frozenset(range(WORDS, WORDS + 64))),
        TOKENS: _NEVER,
    }
)
"""A few of the words stand for the marker words. The rule entropy is missing: the probabilities of
these words say nothing about where a model is unsure."""

_PIECE = re.compile(r"\n\n|\S+")
_ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
_SPECIALS = {EOS: "", BLANK_LINE: "\n\n", SEPARATOR: "", NEXT: "Next", THEREFORE: "Therefore"}
_SPECIALS |= dict.fromkeys((SYSTEM, USER, ASSISTANT), "")
_NUMBERED = re.compile(r"w(\d+)|#(\d+)|\\boxed\{(\d+)\}")


class SimCodec:
    """Implements engine.base.Codec. `encode(decode(ids)) == ids` for generated ids."""

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def vocab_size(self) -> int:
        return VOCAB

    @property
    def longest_token(self) -> int:
        return 1 << 20  # a word of any length

    @property
    def rules(self) -> Mapping[str, BoundaryRule]:
        return RULES

    @property
    def thinks(self) -> bool:
        return False

    def encode(self, text: str) -> TokenIds:
        return tuple(_encode_word(piece) for piece in _PIECE.findall(text))

    def encode_chat(
        self, messages: Sequence[Message], variables: Mapping[str, Any] = NO_VARIABLES
    ) -> TokenIds:
        turns = (t for m in messages for t in (_ROLES[m.role], *self.encode(m.content)))
        return (*turns, ASSISTANT)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(_decode_token(token) for token in token_ids)


@lru_cache(maxsize=1 << 16)
def _encode_word(piece: str) -> int:
    if piece == "\n\n":
        return BLANK_LINE
    if piece in ("Next", "Therefore"):
        return NEXT if piece == "Next" else THEREFORE
    if found := _NUMBERED.fullmatch(piece):
        for digits, (base, size) in zip(
            found.groups(),
            ((WORDS, NUM_WORDS), (ROWS, NUM_ROWS), (BOXED, NUM_ANSWERS)),
            strict=True,
        ):
            if digits is not None and int(digits) < size:
                return base + int(digits)
    return HASHED + crc32(piece.encode()) % (VOCAB - HASHED)


def _decode_token(token: int) -> str:
    if token in _SPECIALS:
        return _SPECIALS[token]
    if BOXED <= token < BOXED + NUM_ANSWERS:
        return rf" \boxed{{{token - BOXED}}}"
    if WORDS <= token < WORDS + NUM_WORDS:
        return f" w{token - WORDS}"
    if ROWS <= token < ROWS + NUM_ROWS:
        return f" #{token - ROWS}"
    return f" x{token}"
