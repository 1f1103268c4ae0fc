"""A program as its scheduler sees it: who asks, how much is left to generate, since when it waits.

A program is what one user waits for: a search with all of its paths, or a plain request. Requests
that carry the same program key are one program.

Ref: arXiv 2412.20993 §3.3, App. D.3; arXiv 2604.00499 §4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flashedge.scheduling.lengths.distribution import LengthDistribution


class Kind(StrEnum):
    """What a program is for. People wait at a chat, so it goes first, and batch work last."""

    CHAT = "chat"
    SEARCH = "search"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program at one moment. Times are seconds of one clock."""

    key: str
    """Names the program. Its engine requests carry it."""

    client: str = ""
    """Who asks. Clients share the engines evenly where fairness is on."""

    kind: Kind = Kind.SEARCH
    arrived_s: float
    outputs: int = 1
    """Outputs that it still means to draw, the finished ones included: answers or paths."""

    width: int | None = None
    """Sequences that it draws at once. None: all outputs. MCTS may draw more than it has outputs:
    several children for each rollout in flight."""

    max_tokens: int
    """Limit of one output."""

    prompt_tokens: int = 0
    """Tokens that all outputs share."""

    lengths: LengthDistribution | None = None
    """Of one output. None until it is predicted."""

    drawn_tokens: int = 0
    """Tokens of all outputs so far."""

    progress: float = 0.0
    """Share of its work that is done, in [0, 1], as far as other things than its tokens tell. A
    search that may exit early has its certainty here: the surer it is, the sooner it ends."""

    shared_tokens: int = 0
    """Prompt tokens whose KV other programs, or its own finished outputs, have in the cache."""

    kv_share: float = 1.0
    """What part of the tokens of all its sequences it holds at its peak. See `kv_share`."""

    started_s: float | None = None
    """When it first ran. None while it waits for admission."""

    served_s: float | None = None
    """When it last got a token. None: never."""

    is_resumed: bool = False
    """Whether it had started before, and comes back after a short pause."""

    @property
    def waits_since_s(self) -> float:
        """Since when it got nothing."""
        return self.arrived_s if self.served_s is None else self.served_s

    @property
    def is_under_way(self) -> bool:
        """Whether it goes before those of its kind that have not started."""
        return self.started_s is not None or self.is_resumed

    @property
    def sequences(self) -> int:
        """The most sequences that it draws at once, at least one."""
        return max(1, self.outputs if self.width is None else self.width)
