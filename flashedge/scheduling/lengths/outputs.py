"""What a predictor of lengths takes: a request, and the output lengths that it learns from."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from flashedge.types import TokenIds

PLAIN = "plain"
"""The kind of a request outside any search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRequest:
    """A search or a plain request. Its prompt is known by its tokens, its text, or both."""

    pair: str
    kind: str = PLAIN
    """The name of a search's strategy, or PLAIN."""
    prompt_ids: TokenIds = ()
    prompt_tokens: int = 0
    """Tokens of the prompt where `prompt_ids` is empty. 0 where they are not known."""
    text: str = ""
    """The conversation."""
    outputs: int = 1
    """Paths or choices that it asks for."""
    max_tokens: int
    """Limit of one output."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids) or self.prompt_tokens

    @property
    def prompt_key(self) -> bytes:
        """An 8-byte hash of the text or, if there is no text, of the token ids. One prompt that is
        known once by each counts as two."""
        data = self.text.encode() or array("q", self.prompt_ids).tobytes()
        return hashlib.blake2b(data, digest_size=8).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLengths:
    """The lengths of one prompt's outputs, as weighted points. A censored output is only known to
    be longer. In a search tree, paths share their beginnings. A path that continues as four
    children counts once up to the point where they part. That point has a weight of -3: 1 for the
    path, less 4 for the children. A tree's weights add up to the number of its first steps."""

    tokens: tuple[int, ...]
    """(num_points,) length at each point, at least 1."""
    is_censored: tuple[bool, ...]
    """(num_points,) whether the output is only known to be longer, as where paths part."""
    weights: tuple[float, ...]
    """(num_points,) how often each point counts. Negative for some censored points only."""

    @classmethod
    def from_outputs(cls, tokens: Sequence[int], is_censored: Sequence[bool] = ()) -> Self:
        """Make the points of outputs that share nothing. is_censored: empty if none is."""
        cut = tuple(is_censored) or (False,) * len(tokens)
        return cls(tokens=tuple(tokens), is_censored=cut, weights=(1.0,) * len(tokens))

    @property
    def num_outputs(self) -> float:
        return sum(self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedOutputs:
    request: LengthRequest
    lengths: OutputLengths
