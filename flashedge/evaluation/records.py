"""What was measured on each problem, kept in a file so that a second call goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.files.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What makes two measurements the same: both must agree before one goes on with the other's
    file. models, problems: digests of the pair and of the problem file; n: sizes, ascending."""

    pair: str
    models: str
    problems: str
    n: tuple[int, ...]
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One sampled solution. answer: equal answers of a problem are spelled alike; scores:
    (num_steps,) in [0, 1]; step_tokens: (num_steps,), empty where not known."""

    text: str
    answer: str | None
    right: bool
    scores: tuple[float, ...] = ()
    step_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord:
    """chains: the samples, as many as the largest n; beams: what beam search chose, by n."""

    index: int
    id: str
    family: str | None
    steps: int | None
    greedy: Chain
    chains: tuple[Chain, ...]
    beams: Mapping[int, Chain]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProblemRecord:
        """The inverse of `to_json`. Raises KeyError, TypeError, ValueError."""
        return cls(
            **{name: data[name] for name in ("index", "id", "family", "steps")},
            greedy=_chain(data["greedy"]),
            chains=tuple(_chain(chain) for chain in data["chains"]),
            beams={int(n): _chain(chain) for n, chain in data["beams"].items()},
        )


def _chain(data: Mapping[str, Any]) -> Chain:
    lists = {name: tuple(data[name]) for name in ("scores", "step_tokens")}
    return Chain(**{**data, **lists})


def open_records(path: Path, settings: Settings) -> Journal[int, ProblemRecord]:
    """By the problems' indices. Raises what `Journal` does."""
    return Journal(
        path, dataclasses.asdict(settings), ProblemRecord.from_json, key=lambda r: r.index
    )
