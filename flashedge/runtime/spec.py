"""What a run is asked to do, checked, with every default filled in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashedge.errors import RequestError
from flashedge.types import MAX_SEED, Limits, Message, Problem, Sampling

AGGREGATES = ("last", "min", "prod", "mean")
SELECTIONS = ("weighted", "majority", "best")
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One search run.

    n: paths to complete; branching: children per kept path; aggregate: how step scores become a
    path's score; selection: how the answer is chosen among the completed paths; max_step_tokens:
    longest step; max_steps: depth at which the last step runs to the end; max_path_tokens: longest
    path; token_budget: generated tokens of the whole tree; deadline_s: wall clock from the start
    of the run; baseline: the stock loop (boundary by stop string, whole-path scoring).
    """

    problem: Problem
    pair: str
    strategy: str = "beam"
    n: int = 16
    branching: int = 4
    aggregate: str = "last"
    selection: str = "weighted"
    seed: int = 0
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    max_step_tokens: int = 256
    max_steps: int = 40
    max_path_tokens: int = 2048
    token_budget: int | None = None
    deadline_s: float | None = None
    baseline: bool = False

    def __post_init__(self) -> None:
        """Raises RequestError naming the first field that is wrong (`param`)."""
        check_messages(self.problem.messages)
        _choice("aggregate", self.aggregate, AGGREGATES)
        _choice("selection", self.selection, SELECTIONS)
        check_int("n", self.n, 1, 1024)
        check_int("branching", self.branching, 1, 1024)
        check_int("seed", self.seed, 0, MAX_SEED)
        check_int("max_step_tokens", self.max_step_tokens, 1, 1 << 20)
        check_int("max_steps", self.max_steps, 1, 10_000)
        check_int("max_path_tokens", self.max_path_tokens, 1, 1 << 20)
        if self.token_budget is not None:
            check_int("token_budget", self.token_budget, 1, 1 << 40)
        if self.deadline_s is not None:
            check_float("deadline_s", self.deadline_s, 0.001, 1e6)
        check_sampling(self.sampling)

    @property
    def limits(self) -> Limits:
        return Limits(max_path_tokens=self.max_path_tokens, token_budget=self.token_budget)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: lists, no tuples."""
        fields = dataclasses.asdict(self)
        fields["problem"]["messages"] = list(fields["problem"]["messages"])
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """The inverse of `to_json`. Raises RequestError."""
        fields = dict(data)
        fields["problem"] = Problem(
            messages=tuple(Message(**m) for m in data["problem"]["messages"])
        )
        fields["sampling"] = Sampling(**data["sampling"])
        return cls(**fields)


def check_messages(messages: tuple[Message, ...]) -> None:
    if not messages:
        raise RequestError("messages is empty; give at least one user message", param="messages")
    for i, message in enumerate(messages):
        _choice(f"messages[{i}].role", message.role, ROLES)
    if messages[-1].role != "user":
        raise RequestError("the last message must be the user's", param="messages")
    if not messages[-1].content.strip():
        raise RequestError("the problem is empty; give some text", param="problem")


def check_sampling(sampling: Sampling) -> None:
    check_float("temperature", sampling.temperature, 0.0, 2.0)
    check_float("top_p", sampling.top_p, 0.0, 1.0, open_low=True)
    check_int("top_k", sampling.top_k, 0, 1 << 20)


def check_int(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(
            f"{name} is {value!r}; it must be an integer in [{low}, {high}]", param=name
        )


def check_float(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not number
        or not math.isfinite(value)
        or not low <= value <= high
        or (open_low and value <= low)
    ):
        bracket = "(" if open_low else "["
        raise RequestError(
            f"{name} is {value!r}; it must be a number in {bracket}{low:g}, {high:g}]", param=name
        )


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RequestError(f"{name} is {value!r}; it must be one of {', '.join(known)}", param=name)
