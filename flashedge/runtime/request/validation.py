"""The request of a search run, as it came: checked, with every default filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashedge.errors import RequestError
from flashedge.models.specs import find_fault
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.values import ROLES, check_choice, check_field
from flashedge.search.step_rules import EntropyRule
from flashedge.search.strategies.mcts import ARRIVAL
from flashedge.types import (
    BLANK_LINE,
    ENTROPY,
    MIN_STEP_TOKENS,
    STEP_ENTROPY,
    STEPS,
    Limits,
    Message,
    Problem,
    Sampling,
    TokenIds,
)

USUAL_PATHS = 16
"""The default of `Request.n`. Chosen by hand: with 4, the usual beam search would keep one path,
and with 64 it would compute four times as much."""
_LIMITS = ("token_budget", "deadline_s")
"""Fields that may be None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for. What the daemon decides about it is a `Plan`."""

    problem: Problem
    pair: str
    strategy: str = "beam"
    n: int = USUAL_PATHS
    """Paths to complete."""
    branching: int = 4
    """Children of each kept path."""
    aggregate: str = "last"
    """How step scores become the score of a path: one of `values.AGGREGATES`."""
    selection: str = "weighted"
    """How the answer is chosen among the completed paths: one of `values.SELECTIONS`."""
    seed: int = 0
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    max_step_tokens: int = 256
    max_steps: int = 40
    """Depth at which the last step runs to the end of the path."""
    max_path_tokens: int = 2048
    """Most generated tokens of one path."""
    step_rule: str = BLANK_LINE
    """Where a step ends: one of STEP_RULES."""
    step_entropy: float = STEP_ENTROPY
    """Nats. By the rule `entropy`, a step ends before a token with more than this."""
    min_step_tokens: int = MIN_STEP_TOKENS
    """Least tokens of a step by the rule `entropy`."""
    judge: str = STEPS
    """What the verifier sees of a path: one of JUDGED. An answer gets one score, by `aggregate`
    over its steps if the verifier judges steps."""
    token_budget: int | None = None
    """Most generated tokens of the whole tree, checked at the end of each level."""
    deadline_s: float | None = None
    """Wall-clock seconds from the start of the run to its end."""
    baseline: bool = False
    """Whether to run the stock loop: stop strings, whole-path scoring, no optimization."""
    deterministic: bool = False
    """Whether tokens, scores and choices must not depend on what else the engines compute."""
    early_exit: ExitOptions | None = None
    """When certainty may stop the run before its end. With None it never does."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the strategy (`search.catalog`) or of a user's program, as plain JSON values."""
    answers: str = "boxed"
    """boxed, text or whole (for open-ended problems), or json. See `answers.equality`."""
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Variables of the generator's chat template, in place of those of its entry in models.toml."""
    prompt_ids: TokenIds | None = None
    """The prompt, where a protocol's handler has encoded it with the conversation's tools."""
    guidance: Mapping[str, Any] | None = None
    """What every path must match. See `ExtendRequest.guidance`."""

    def __post_init__(self) -> None:
        """Raises RequestError that names the first wrong field (`param`)."""
        _check_messages(self.problem.messages)
        for part in (self, self.sampling):
            for field in dataclasses.fields(part):
                value = getattr(part, field.name)
                if value is not None or field.name not in _LIMITS:
                    check_field(field.name, value)
        if self.step_rule == ENTROPY and self.min_step_tokens >= self.max_step_tokens:
            raise RequestError(
                f"min_step_tokens is {self.min_step_tokens}, but a step has at most"
                f" {self.max_step_tokens} tokens (max_step_tokens)",
                hint="choose fewer than max_step_tokens",
                param="min_step_tokens",
            )
        if fault := find_fault(self.chat_template_kwargs):
            raise RequestError(f"chat_template_kwargs {fault}", param="chat_template_kwargs")
        if self.deterministic:
            _check_deterministic(self)

    @property
    def limits(self) -> Limits:
        return Limits(max_path_tokens=self.max_path_tokens, token_budget=self.token_budget)

    @property
    def entropy_rule(self) -> EntropyRule | None:
        if self.step_rule != ENTROPY:
            return None
        return EntropyRule(threshold=self.step_entropy, min_tokens=self.min_step_tokens)

    def to_json(self) -> dict[str, Any]:
        """Build plain JSON values, with lists for tuples."""
        fields = dataclasses.asdict(self)
        fields["problem"]["messages"] = list(fields["problem"]["messages"])
        if self.prompt_ids is not None:
            fields["prompt_ids"] = list(self.prompt_ids)
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Invert `to_json`. Raises RequestError, KeyError or TypeError."""
        fields = dict(data)
        messages = tuple(Message(**message) for message in data["problem"]["messages"])
        fields["problem"] = Problem(messages=messages)
        fields["sampling"] = Sampling(**data["sampling"])
        if data.get("prompt_ids") is not None:
            fields["prompt_ids"] = tuple(data["prompt_ids"])
        if data.get("early_exit") is not None:
            fields["early_exit"] = ExitOptions.from_json(data["early_exit"])
        return cls(**fields)


def _check_messages(messages: tuple[Message, ...]) -> None:
    if not messages:
        raise RequestError("messages is empty; give at least one user message", param="messages")
    for i, message in enumerate(messages):
        check_choice(f"messages[{i}].role", message.role, ROLES)
    if messages[-1].role != "user":
        raise RequestError("the last message must be the user's", param="messages")
    if not messages[-1].content.strip():
        raise RequestError("the problem is empty; give some text", param="problem")


def _check_deterministic(request: Request) -> None:
    """Refuse fields by which a clock, the order of arrival or the engines' load would change the
    search, and what can't be computed deterministically."""
    param, what, instead = "", "", ""
    if request.deadline_s is not None:
        param, what = "deadline_s", "a deadline, which cuts by the clock"
        instead = "limit it by token_budget"
    elif request.options.get("boost"):
        param, what = "options.boost", "boosted rollouts, whose number follows the load"
        instead = "set a fixed number of rollouts by the option parallel"
    elif request.options.get("take") == ARRIVAL:
        param, what = "options.take", "results taken by arrival"
        instead = "take them in the order of launch"
    elif request.guidance is not None:
        param, what = "deterministic", "a grammar (response_format, tools), which no pass verifies"
        instead = "leave out what the answer has to match"
    elif request.baseline:
        param, what = "baseline", "the stock loop, which ends steps outside the engine"
        instead = "leave out baseline"
    if param:
        raise RequestError(
            f"a deterministic search can't have {what}",
            hint=f"{instead}, or leave out deterministic",
            param=param,
        )
