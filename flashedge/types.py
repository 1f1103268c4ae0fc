"""The nouns that every layer shares. Frozen values, no behaviour beyond small derivations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

NodeId = NewType("NodeId", int)
TokenIds = tuple[int, ...]

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a run is asked: a conversation whose last message is the user's."""

    messages: tuple[Message, ...]

    @classmethod
    def from_text(cls, text: str) -> Problem:
        return cls(messages=(Message(role="user", content=text),))

    @property
    def text(self) -> str:
        """The last user message."""
        return self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is drawn: temperature, then top-k, then top-p, then seeded noise.

    temperature 0 is greedy; top_k 0 and top_p 1 are off.
    """

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """How far one expansion generates: at most `max_tokens`, up to a step's end unless `to_end`."""

    max_tokens: int
    to_end: bool = False


class FinishReason(StrEnum):
    """Why a segment ended."""

    BOUNDARY = "boundary"  # a blank line: the step is whole, the path goes on
    STEP_LIMIT = "step_limit"  # the granularity's token limit: cut in the middle, the path goes on
    STOP = "stop"  # end of the answer (EOS or a stop string)
    LENGTH = "length"  # the path has no room left (context or max_tokens)

    @property
    def ends_path(self) -> bool:
        return self in (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one expansion generated.

    token_ids: (num_tokens,); logprobs: (num_tokens,), natural log under the model's own
    distribution at temperature 1. `steps` are the texts of the steps that the segment holds,
    at least one; an unfinished step (STEP_LIMIT) is its last.
    """

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    text: str
    steps: tuple[str, ...]
    finish: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One cluster of equal answers. weight: sum of its paths' scores; count: its paths."""

    answer: str
    weight: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run. Token counts are committed tokens; the deadline is the runtime's.

    max_path_tokens: generated tokens of one path; token_budget: generated tokens of the whole
    tree, checked at the end of each level (None: no bound).
    """

    max_path_tokens: int
    token_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a run.

    completion_tokens: tokens of the chosen path (all choices for plain chat);
    tree_tokens: committed tokens of the whole tree; speculated_tokens: generated beyond
    boundaries and not kept; verifier_tokens: prompt tokens the verifier was asked about;
    verifier_cached_tokens: those of them whose KV it re-used.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    tree_tokens: int = 0
    speculated_tokens: int = 0
    verifier_tokens: int = 0
    verifier_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Wall-clock seconds. generate_s and verify_s: time with at least one such request open."""

    queue_s: float = 0.0
    generate_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
