"""Programs and their members: who asks, how much is left to generate, since when a program waits.

A program is what one user waits for: a search with all of its paths, or a plain request. Runs and
requests that carry the same key are members of one program, and a program is what its open members
do together: it shrinks when one of them ends.

Ref: arXiv 2412.20993 §3.3, App. D.3; arXiv 2604.00499 §4.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from math import sqrt
from typing import Any

from flashedge.scheduling.lengths.distribution import (
    LengthDistribution,
    TailFigures,
    compute_figures,
)

ROUNDED_TOKENS = 16
"""Drawn tokens are rounded down to a multiple, since figures are cached for each number."""
LEAST_LEFT = 0.02
"""Share of a program's work that counts as left until it is over."""


class Kind(StrEnum):
    """What a program is for. People wait at a chat, so it goes first, and batch work last."""

    CHAT = "chat"
    SEARCH = "search"
    BATCH = "batch"


KIND_RANKS = {kind: at for at, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    client: str = ""
    program: str | None = None
    """The key of the program that the request is a part of. None: a program of its own."""

    priority: int = 0
    """Above 0 it is batch work, which waits for everything else."""

    def choose_kind(self, usual: Kind) -> Kind:
        return Kind.BATCH if self.priority > 0 else usual


ANONYMOUS = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    expected: float
    tail: float
    """The mean in the worst tenth of the cases (CVaR)."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A run or a plain request: what it generates, and what of it is left."""

    kind: Kind = Kind.SEARCH
    outputs: int = 1
    """Answers or paths that it draws in all, the finished ones included."""

    width: int | None = None
    """Sequences that it draws at once. None: all outputs. MCTS draws several children for each
    rollout in flight."""

    max_tokens: int
    """Limit of one output."""

    prompt_tokens: int = 0
    kv_share: float = 1.0
    """What part of the tokens of all its sequences it holds at its peak. See `KvShares`."""

    lengths: LengthDistribution | None = None
    """The length of one output. None until it is predicted."""

    drawn_tokens: int = 0
    """Tokens of all outputs so far."""

    progress: float = 0.0
    """Share of the work that is done, in [0, 1], where more than its tokens is known: the certainty
    of a search that may exit early."""

    work: Work = field(init=False)
    """What is left. Kept, since programs are ordered far more often than they change."""

    def __post_init__(self) -> None:
        self.work = estimate_work(self)

    def change(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        self.work = estimate_work(self)

    @property
    def sequences(self) -> int:
        return max(1, self.outputs if self.width is None else self.width)

    def predict_output(self) -> tuple[float | None, float | None]:
        return predict_output(self.lengths, self.max_tokens)


@dataclass(slots=True, kw_only=True)
class Program:
    """One program. Times are seconds of one clock."""

    key: str
    """Its engine requests carry it."""

    client: str = ""
    arrived_s: float
    members: dict[str, Member] = field(default_factory=dict)
    """By id, in the order of their arrival. Never empty."""

    started_s: float | None = None
    """When it first ran. None while it waits for admission."""

    served_s: float | None = None
    """When it last got a token."""

    is_resumed: bool = False
    """Whether it had started before, and comes back after a short pause."""

    is_escalated: bool = False
    """Whether it once got nothing for too long."""

    @property
    def kind(self) -> Kind:
        """The kind of its most urgent member."""
        return min((m.kind for m in self.members.values()), key=KIND_RANKS.__getitem__)

    @property
    def work(self) -> Work:
        """What all members do together. Their tails are assumed to coincide."""
        works = [member.work for member in self.members.values()]
        return Work(expected=sum(w.expected for w in works), tail=sum(w.tail for w in works))

    @property
    def waits_since_s(self) -> float:
        return self.arrived_s if self.served_s is None else self.served_s

    @property
    def is_under_way(self) -> bool:
        """Whether it goes before those of its kind that have not started."""
        return self.started_s is not None or self.is_resumed

    def predict_output(self) -> tuple[float | None, float | None]:
        """Predict an output as that of a member. The lengths of the member that joined last stand
        for all."""
        members = self.members.values()
        lengths = next((m.lengths for m in reversed(members) if m.lengths is not None), None)
        return predict_output(lengths, max(member.max_tokens for member in members))


def predict_output(
    lengths: LengthDistribution | None, max_tokens: int
) -> tuple[float | None, float | None]:
    """Median and upper tenth of the tokens of an output, where they are predicted."""
    if lengths is None:
        return None, None
    one = find_figures(lengths, max_tokens, 0)
    return one.median, one.value_at_risk


def estimate_work(member: Member) -> Work:
    """The tokens that a member still generates. Unpredicted outputs count in full.

    Their sum is less uncertain than one output: the excess of its tail grows with the square root
    of their number, which is exact for many independent outputs. Remaining work stays positive: a
    member past its estimate counts as nearly done, not done.
    """
    outputs, most = max(1, member.outputs), member.max_tokens
    if member.lengths is None:
        whole = Work(expected=float(outputs * most), tail=float(outputs * most))
    elif outputs == 1:
        drawn = min(member.drawn_tokens // ROUNDED_TOKENS * ROUNDED_TOKENS, most - 1)
        one = find_figures(member.lengths, most, drawn)
        return Work(
            expected=max(1.0, one.expected - drawn),
            tail=max(1.0, one.conditional_value_at_risk - drawn),
        )
    else:
        one = find_figures(member.lengths, most, 0)
        expected = outputs * one.expected
        excess = sqrt(outputs) * (one.conditional_value_at_risk - one.expected)
        whole = Work(expected=expected, tail=expected + excess)
    done = max(member.progress, member.drawn_tokens / whole.expected)
    left = max(LEAST_LEFT, 1.0 - done)
    return Work(expected=whole.expected * left, tail=whole.tail * left)


@lru_cache(maxsize=1 << 14)
def find_figures(lengths: LengthDistribution, limit: int, drawn: int) -> TailFigures:
    return compute_figures(lengths, limit, drawn=drawn)
