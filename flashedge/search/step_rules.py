"""Where a step ends: after a blank line, after a marker word, or where its tokens are used up.

A run chooses a `BoundaryRule` by name. The engine, the stock engine and the simulator share this
class. The rule `entropy` needs more than token ids: see `EntropyRule`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields

from flashedge.types import BLANK_LINE, ENTROPY, MARKERS, TOKENS, FinishReason, TokenIds

MARKER_WORDS = ("Wait", "Alternatively", "Hmm", "However", "Actually", "</think>")
"""Words with which thinking models begin another thought, and the mark that ends thinking."""

_WORDS = frozenset(MARKER_WORDS)
_BLANK_LINE = re.compile(r"\n{2,}")


def split_steps(text: str) -> tuple[str, ...]:
    """Split after each run of newlines that contains a blank line. Returns at least one step.
    `"".join(split_steps(text)) == text`. No step is blank unless the whole text is: leading blanks
    belong to the first step, trailing ones to the last."""
    steps: list[str] = []
    begin = at = 0
    for end in (*(match.end() for match in _BLANK_LINE.finditer(text)), len(text)):
        if text[at:end].strip():
            steps.append(text[begin:end])
            begin = end
        at = end
    if not steps:
        return (text,)
    steps[-1] += text[begin:]
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryRule:
    """Detects the end of a step from token ids alone. Built once per tokenizer; can be pickled."""

    holds: frozenset[int]
    """Ids that end a step by themselves: their text contains a blank line, or is a marker word."""
    closes: frozenset[int]
    """Ids whose text ends with a newline."""
    opens: frozenset[int]
    """Ids whose text starts with a newline, which makes a blank line after an id of `closes`."""
    blank: frozenset[int]
    """Ids whose text is whitespace only."""

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[int, str]]) -> BoundaryRule:
        """Make the rule from (id, text) pairs. Ids that are not listed never end a step."""
        newlines = [(token, text) for token, text in texts if "\n" in text]
        return cls(
            holds=frozenset(token for token, text in newlines if "\n\n" in text),
            closes=frozenset(token for token, text in newlines if text.endswith("\n")),
            opens=frozenset(token for token, text in newlines if text.startswith("\n")),
            blank=frozenset(token for token, text in newlines if not text.strip()),
        )

    @classmethod
    def from_words(cls, texts: Iterable[tuple[int, str]], words: Set[str]) -> BoundaryRule:
        """Make a rule by which a step ends with a token that is one of the words."""
        holds = frozenset(token for token, text in texts if text.strip() in words)
        return cls(holds=holds, closes=frozenset(), opens=frozenset(), blank=frozenset())

    def ends_step(self, prev_id: int | None, token_id: int) -> bool:
        """Whether `token_id` is the last of its step. prev_id: the id before it in the same step. A
        first id that is blank ends nothing: no step is empty."""
        if prev_id is None:
            return token_id in self.holds and token_id not in self.blank
        return token_id in self.holds or (token_id in self.opens and prev_id in self.closes)

    def split_ids(self, token_ids: Sequence[int]) -> tuple[TokenIds, ...]:
        """Split after each id that ends a step. No id is lost and no piece is empty."""
        pieces: list[TokenIds] = []
        start = 0
        for at, token in enumerate(token_ids):
            if self.ends_step(token_ids[at - 1] if at > start else None, token):
                pieces.append(tuple(token_ids[start : at + 1]))
                start = at + 1
        if start < len(token_ids):
            pieces.append(tuple(token_ids[start:]))
        return tuple(pieces)

    def to_json(self) -> dict[str, list[int]]:
        return {field.name: sorted(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Iterable[int]]) -> BoundaryRule:
        return cls(**{name: frozenset(ids) for name, ids in data.items()})


def build_rules(texts: Iterable[tuple[int, str]]) -> Mapping[str, BoundaryRule]:
    """The rules of a vocabulary by their names in `types.STEP_RULES`, from (id, text) pairs."""
    known = [(token, text) for token, text in texts if "\n" in text or text.strip() in _WORDS]
    return {
        BLANK_LINE: BoundaryRule.from_texts(known),
        MARKERS: BoundaryRule.from_words(known, _WORDS),
        TOKENS: BoundaryRule.from_words((), frozenset()),
        ENTROPY: BoundaryRule.from_words((), frozenset()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """Finds the last token of a step. A boundary counts even if its token is the last that fits
    into the context, because the step is whole and can be scored. vLLM reports the same."""

    max_tokens: int
    """Most tokens of the step."""
    room: int
    """Tokens that fit into the context after the step's path."""
    boundary: BoundaryRule | None
    """None when the step does not end at a boundary."""
    stop_ids: Set[int]
    """Ids that end the path."""

    def find_reason(self, previous: int | None, token: int, count: int) -> FinishReason | None:
        """Why `token` is the last of the step, or None if it is not. count: tokens of the step with
        this one. previous: the token before it in the step."""
        if self.boundary is not None and self.boundary.ends_step(previous, token):
            return FinishReason.BOUNDARY
        if token in self.stop_ids:
            return FinishReason.STOP
        if count == self.room:
            return FinishReason.LENGTH
        return FinishReason.STEP_LIMIT if count == self.max_tokens else None

    def cut(self, token_ids: Sequence[int]) -> tuple[int, FinishReason | None]:
        """Returns how many of the tokens belong to the step, and why the last of these ends it, or
        None if the step goes on."""
        previous = None
        for count, token in enumerate(token_ids, 1):
            if (reason := self.find_reason(previous, token, count)) is not None:
                return count, reason
            previous = token
        return len(token_ids), None


# ---------------------------------------------------------------- entropy

# Ref: arXiv 2502.13943, which ends a step where the drawn token is improbable. Entropy does not
# depend on the drawn token; the few tokens of high entropy are the forks of a chain of thought
# (arXiv 2506.01939). The rule as it stands here is ours.


TOP = 20
"""Tokens whose log-probabilities are used: the most that vLLM reports by default."""


def estimate_entropy(logprobs: Sequence[float]) -> float:
    """Entropy in nats of a next-token distribution, where all but the TOP likeliest tokens count as
    one token. It is never above the exact entropy, close to it where the model is sure, and at most
    log(TOP + 1) = 3.04. logprobs: the likeliest token first, since the order matters in the last
    bit; those after the first TOP are ignored."""
    likeliest = logprobs[:TOP]
    shares = [math.exp(value) for value in likeliest]
    entropy = -sum(p * value for p, value in zip(shares, likeliest, strict=True) if p > 0)
    others = 1.0 - sum(shares)
    return entropy - others * math.log(others) if others > 0 else entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyRule:
    """Ends a step before a token whose distribution has too much entropy. The distribution is the
    model's own: at temperature 1, before top-k and top-p. The token itself is dropped, and each
    child of the node draws it again with its own seed."""

    threshold: float
    """In nats. A token with more entropy than this ends the step."""
    min_tokens: int
    """Fewest tokens of a step, at least 1. The first token of a step is often uncertain."""

    def ends_before(self, entropy: float, count: int) -> bool:
        """Whether the step ends with its first `count` tokens, before the one with this entropy."""
        return count >= self.min_tokens and entropy > self.threshold

    def count_kept(self, entropies: Sequence[float], count: int = 0) -> int:
        """How many of the next tokens belong to the step: all of them if none ends it. entropies:
        (num_tokens,) of these tokens. count: tokens of the step before them."""
        ends = (at for at, e in enumerate(entropies) if self.ends_before(e, count + at))
        return next(ends, len(entropies))
