"""Where a step ends: after a blank line. One rule for text, token ids, engine and simulator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flashedge.types import TokenIds

_STEP = re.compile(r"\s*\S.*?(?:\n{2,}|\Z)", re.DOTALL)


def split_steps(text: str) -> tuple[str, ...]:
    """Cut after each run of newlines that holds a blank line; at least one step.

    Nothing is lost: `"".join(split_steps(text)) == text`. No step is blank, unless the whole text
    is: blanks at the start belong to the first step, those at the end to the last one.
    """
    steps = _STEP.findall(text)
    if not steps:
        return (text,)
    steps[-1] += text[sum(map(len, steps)) :]
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryRule:
    """Ends a step by token ids alone. Made once from a tokenizer; picklable, JSON-able.

    holds: ids whose text holds a blank line; closes / opens: ids whose text ends / starts with a
    newline, so that a pair of them holds one; blank: ids whose text is whitespace only.
    """

    holds: frozenset[int]
    closes: frozenset[int]
    opens: frozenset[int]
    blank: frozenset[int]

    @classmethod
    def from_decode(cls, decode: Callable[[int], str], vocab_size: int) -> BoundaryRule:
        """Decode each id in [0, vocab_size) alone. Ids that decode to nothing never end a step."""
        return cls.from_texts(enumerate(map(decode, range(vocab_size))))

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[int, str]]) -> BoundaryRule:
        """From (id, text) pairs; ids that are left out never end a step."""
        newlines = [(token, text) for token, text in texts if "\n" in text]
        return cls(
            holds=frozenset(token for token, text in newlines if "\n\n" in text),
            closes=frozenset(token for token, text in newlines if text.endswith("\n")),
            opens=frozenset(token for token, text in newlines if text.startswith("\n")),
            blank=frozenset(token for token, text in newlines if not text.strip()),
        )

    def ends_step(self, prev_id: int | None, token_id: int) -> bool:
        """Whether `token_id` is the last of its step. prev_id: the one before it in the same
        step, None for a step's first, which ends nothing while it is blank: a step is not empty.
        """
        if prev_id is None:
            return token_id in self.holds and token_id not in self.blank
        return token_id in self.holds or (token_id in self.opens and prev_id in self.closes)

    def split_ids(self, token_ids: Sequence[int]) -> tuple[TokenIds, ...]:
        """Cut after each id that ends a step; nothing is lost, no piece is empty."""
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
        return {
            "holds": sorted(self.holds),
            "closes": sorted(self.closes),
            "opens": sorted(self.opens),
            "blank": sorted(self.blank),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Iterable[int]]) -> BoundaryRule:
        """The inverse of `to_json`."""
        return cls(
            holds=frozenset(data["holds"]),
            closes=frozenset(data["closes"]),
            opens=frozenset(data["opens"]),
            blank=frozenset(data["blank"]),
        )
