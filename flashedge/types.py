"""The values that every layer shares. All are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal, NewType

NodeId = NewType("NodeId", int)
TokenIds = tuple[int, ...]
Judges = Literal["steps", "answers", "nothing"]
"""What one score of a verifier is about: a step of a path, or a whole answer. "nothing" stands for
a pair that has no verifier."""

UNUSED = "unused"
"""The state of the verifier of a pair that has none. It is never started."""
MAX_SEED = 2**63 - 1  # the largest that an int64 tensor holds
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
"""What most models write around their thinking."""
ThinkTags = tuple[str, str]
"""What a model writes before and after its thinking, without control tokens."""
THINK_TAIL_TOKENS = 16
"""Tokens of a prompt's end in which a chat template may open the thinking. Chosen by hand: the tag
and a line break take a few, and further back a user's text could hold the tag."""
STEPS, ANSWER = "steps", "answer"
JUDGED = (STEPS, ANSWER)
"""What the verifier sees of a path: all of its steps, or the answer after the thinking."""
BLANK_LINE, MARKERS, TOKENS, ENTROPY = "blank_line", "markers", "tokens", "entropy"
POLICY_NAMES = ("fcfs", "gang", "tie", "shortest")
"""Which of the waiting programs goes next: see `scheduling.programs.policies`."""
USUAL_POLICY = "shortest"
STRATEGIES: Mapping[str, str] = {
    "beam": "step by step, the best paths go on",
    "best_of_n": "n whole answers, weighed by the verifier",
    "self_consistency": "n whole answers, the most frequent one wins",
    "deepconf": "n whole answers, weighed by how sure the model was of its words",
    "dvts": "subtrees, each keeps its best path",
    "dynamic_branching": "a beam that branches more below high scores",
    "varying_granularity": "a beam of short steps first, long ones later",
    "rebase": "rewards decide how many children a path gets",
    "mcts": "n rollouts of Monte Carlo tree search",
    "probed_cot": "one chain, asked for its answer as it grows",
}
"""The built-in strategies, each in words. `search.catalog` builds them."""
STEP_RULES = (BLANK_LINE, MARKERS, TOKENS, ENTROPY)
"""Where a step ends. blank_line: with a blank line; markers: with one of
`search.step_rules.MARKER_WORDS`; tokens: at its token limit; entropy: before an uncertain token
(`search.step_rules.EntropyRule`)."""
STEP_ENTROPY, MIN_STEP_TOKENS = 1.0, 16
"""Defaults of the entropy rule: the nats that end a step, and the least tokens of a step. Chosen by
hand: at a tenth of the nats many tokens end a step, and at ten times none can; a step of two tokens
says too little to be scored, and one of at least 160 holds several thoughts."""
MAX_STEP_ENTROPY = 3.0
"""The largest `step_entropy`, in nats. `search.step_rules` estimates at most 3.04."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    """system, user or assistant"""
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The question of a run: a conversation whose last message is the user's."""

    messages: tuple[Message, ...]

    @classmethod
    def from_text(cls, text: str) -> Problem:
        return cls(messages=(Message(role="user", content=text),))

    @property
    def text(self) -> str:
        return self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is sampled: temperature, then top-k, then top-p, then seeded noise."""

    temperature: float = 0.8
    """0 is greedy."""
    top_p: float = 1.0
    """1 is off."""
    top_k: int = 0
    """0 is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """How far one expansion generates."""

    max_tokens: int
    to_end: bool = False
    """Whether it goes on to the end of the answer. False ends it with the step."""
    confidence_rule: ConfidenceRule | None = None
    """Where it ends for want of confidence. None does not measure it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceRule:
    """Ends a path whose last tokens are too uncertain. See `certainty.token_confidence`."""

    window: int
    """Tokens over which confidence is averaged."""
    least: float = 0.0
    """The path ends with the token at which the average is below this. 0 ends none."""


class FinishReason(StrEnum):
    """Why a segment ended."""

    BOUNDARY = "boundary"
    """The step's end by its rule: the step is complete and the path goes on."""
    STEP_LIMIT = "step_limit"
    """The token limit of the granularity: the step is cut and the path goes on."""
    STOP = "stop"
    """The end of the answer (EOS or a stop string)."""
    LENGTH = "length"
    """The path has no room left (context or max_tokens)."""
    UNSURE = "unsure"
    """The model was too unsure of the last tokens (`ConfidenceRule`)."""

    @property
    def ends_path(self) -> bool:
        return self in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.UNSURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one expansion generated."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    """Shape (num_tokens,): natural log under the model's distribution at temperature 1."""
    text: str
    steps: tuple[str, ...]
    """The texts of the segment's steps, at least one. The last one may be cut (STEP_LIMIT)."""
    finish: FinishReason
    confidences: tuple[float, ...] = ()
    """Shape (num_tokens,), see `certainty.token_confidence`. Empty unless its granularity has a
    `confidence_rule`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One cluster of equal answers."""

    answer: str
    weight: float
    """Sum of the scores of its paths."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one run, in committed tokens. The runtime keeps the deadline."""

    max_path_tokens: int
    """Most generated tokens of one path."""
    token_budget: int | None = None
    """Most generated tokens of the whole tree, checked at the end of each level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What was drafted before the search asked for it: steps and whole paths."""

    drawn_tokens: int = 0
    """Tokens drafted beyond the ends of steps, or of paths not yet asked for."""
    kept_tokens: int = 0
    """Those that became part of the tree."""
    kept_steps: int = 0
    """Steps, or whole paths, that began with a draft."""
    scored_steps: int = 0
    """Steps that were scored together with the step before."""
    early_commits: int = 0
    """Steps that were certainly kept before their level was decided."""
    certain_tokens: int = 0
    """Those of `drawn_tokens` that were drawn for their children, once that was known."""

    def __add__(self, other: Speculation) -> Speculation:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Speculation(**sums)

    @property
    def wasted_tokens(self) -> int:
        return max(0, self.drawn_tokens - self.kept_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Tokens of the chosen path; of all choices in plain chat."""
    tree_tokens: int = 0
    """Committed tokens of the whole tree."""
    speculation: Speculation = Speculation()
    verifier_tokens: int = 0
    """Prompt tokens of the requests to the verifier."""
    verifier_cached_tokens: int = 0
    """Prompt tokens whose KV the verifier reused."""
    probe_tokens: int = 0
    """Tokens of probes, which are no part of `tree_tokens`."""
    cancelled_tokens: int = 0
    """Tokens of cancelled nodes, which are no part of `tree_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    queue_s: float = 0.0
    generate_s: float = 0.0
    """Time with at least one request to the generator open."""
    verify_s: float = 0.0
    """Time with at least one request to the verifier open."""
    total_s: float = 0.0
