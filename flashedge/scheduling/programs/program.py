"""Programs and their members: who asks, how much is left to generate, since when a program waits.

A program is what one user waits for: a search with all of its paths, or a plain request. Runs and
requests that carry the same key are members of one program. A member that ends leaves the program.

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
"""Drawn tokens are rounded down to a multiple of this, since each number has its own entry in the
cache of figures: with 1 few lookups would hit, and with 160 most answers would seem just begun."""
LEAST_LEFT = 0.02
"""Share of a member's work that counts as left until the member is over. With it, members that are
past their estimates are still ordered by their size, for which any small share is enough."""


class Kind(StrEnum):
    """What a program is for. People wait at a chat, so it goes first, and batch work last."""

    CHAT = "chat"
    SEARCH = "search"
    BATCH = "batch"


KIND_RANKS = {kind: at for at, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request."""

    client: str = ""
    program: str | None = None
    """The key of the program that the request belongs to. None makes it a program of its own."""
    priority: int = 0
    """Above 0 it is batch work, which waits for everything else."""

    def choose_kind(self, usual: Kind) -> Kind:
        return Kind.BATCH if self.priority > 0 else usual


ANONYMOUS = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Tokens to generate."""

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
    """Sequences that it draws at once. None stands for all outputs. MCTS draws several children for
    each rollout in flight."""
    max_tokens: int
    """Limit of one output."""
    prompt_tokens: int = 0
    kv_share: float = 1.0
    """Share of the tokens of all its sequences whose KV it holds at its peak. See
    `admission.KvShares`."""
    lengths: LengthDistribution | None = None
    """The length of one output, from the runs of other programs. None until it is predicted.
    Departure from arXiv 2412.20993 App. D.3.1, which takes the mean of the program's own
    iterations: see docs/results/scheduling.md."""
    drawn_tokens: int = 0
    """Tokens of all outputs so far."""
    progress: float = 0.0
    """Share of the work that is done, in [0, 1], if the search reports it: its certainty where it
    may exit early. It counts where the drawn tokens give a smaller share."""
    work: Work = field(init=False)
    """What is left. It is stored, since programs are ordered far more often than they change."""

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
        """(median, value at risk) of the tokens of one output, both None without a prediction."""
        return _predict_output(self.lengths, self.max_tokens)


@dataclass(slots=True, kw_only=True)
class Program:
    """One program. Times are seconds of one clock."""

    key: str
    """The engine requests of its members carry it."""
    client: str = ""
    arrived_s: float
    members: dict[str, Member] = field(default_factory=dict)
    """By id, in the order of their arrival. Not empty after the first has joined."""
    started_s: float | None = None
    """When its first member ran. None before that."""
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
    def sequences(self) -> int:
        """How many sequences its members draw at once."""
        return sum(member.sequences for member in self.members.values())

    @property
    def waits_since_s(self) -> float:
        """When it last got a token, or else when it arrived."""
        return self.arrived_s if self.served_s is None else self.served_s

    @property
    def is_under_way(self) -> bool:
        """Whether it goes before those of its kind that have not started."""
        return self.started_s is not None or self.is_resumed

    def predict_output(self) -> tuple[float | None, float | None]:
        """Like `Member.predict_output`, with the lengths of the last member that has some, and the
        largest limit of all."""
        members = self.members.values()
        lengths = next((m.lengths for m in reversed(members) if m.lengths is not None), None)
        return _predict_output(lengths, max(member.max_tokens for member in members))


def _predict_output(
    lengths: LengthDistribution | None, max_tokens: int
) -> tuple[float | None, float | None]:
    if lengths is None:
        return None, None
    one = find_figures(lengths, max_tokens, 0)
    return one.median, one.value_at_risk


def estimate_work(member: Member) -> Work:
    """The tokens that a member still generates. Outputs without a prediction count as long as their
    limit.

    The sum of several outputs is less uncertain than one of them: the excess of its tail over its
    mean grows with the square root of their number, which is exact for many independent outputs. A
    member past its estimate counts as nearly done, so that the work that is left stays positive.
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
    """Like `compute_figures`, with a cache. limit: `max_tokens` of the output."""
    return compute_figures(lengths, limit, drawn=drawn)
