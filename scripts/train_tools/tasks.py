"""Tasks whose right tool call is known: a story, a condition, and two things that may be done.

    Dan has 46 nuts. Day 1: drops 20. ... More than 40: sell them. Otherwise: ship them.

The solution works through the days as the bundled pair does, decides, and calls:

    Day 1: drops 20. 46-20=26.

    26 is not more than 40. Otherwise: ship.

    <tool_call>
    {"name": "ship", "arguments": {"item": "nuts", "count": 26, "limit": 40}}
    </tool_call>

A task depends on its seed alone. The days are problems of the bundled pair's stories.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts.train_pair.families.base import Spec
from scripts.train_pair.families.story import THINGS, Story

TRAIN_SEEDS = range(4_000_000_000, 5_000_000_000)
HELDOUT_SEEDS = range(5_000_000_000, 5_001_000_000)

TOOLS: Mapping[str, tuple[str, ...]] = {
    "sell": ("item", "count"),
    "store": ("count", "item"),
    "ship": ("item", "count", "limit"),
    "give": ("count", "limit"),
    "count": ("count",),
    "pack": ("limit", "item"),
}
"""Name of a tool: its parameters, in their order. `limit` is the number of the condition."""

NUMBERS = ("count", "limit")
OFFERED = 4
"""Tools of a task; two of them are named in its text."""

HELDOUT_DAYS = (3, 4, 5, 6)
TRAINING_DAYS = (1, 1, 1, 2, 2, 3, 4, 5, 6)
"""How many days a task has. Training sees more short ones; what follows the days is the same."""

AT_MOST = 0.4
"""Share of tasks whose condition says "at most"."""

NEAR = 25
"""How far the condition's number lies from the value, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the text says about the call."""

    thing: str
    limit: int
    if_more: str
    """The tool to call if the owner has more than `limit` things."""

    otherwise: str
    says_at_most: bool
    """Whether the text asks "at most" first, and not "more than"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem with the tools that are offered."""

    id: str
    text: str
    tools: tuple[str, ...]
    """Names of the offered tools, in their order."""

    spec: Spec
    """The story."""

    decision: Decision
    call: Mapping[str, Any]
    """The right call: `name` and `arguments`."""

    def to_json(self) -> dict[str, Any]:
        """Convert to the row of a task file. `define_tool` defines the tools that it names."""
        return {
            "id": self.id,
            "problem": self.text,
            "tools": list(self.tools),
            "call": dict(self.call),
        }


def define_tool(name: str) -> dict[str, Any]:
    """A tool as agents define it, in the form of the OpenAI API."""
    kinds = {field: "integer" if field in NUMBERS else "string" for field in TOOLS[name]}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} things",
            "parameters": {
                "type": "object",
                "properties": {field: {"type": kind} for field, kind in kinds.items()},
                "required": list(kinds),
                "additionalProperties": False,
            },
        },
    }


def build_call(decision: Decision, name: str, count: int) -> dict[str, Any]:
    """The call of a tool with what the text says, and a count."""
    values = {"item": decision.thing, "count": count, "limit": decision.limit}
    return {"name": name, "arguments": {field: values[field] for field in TOOLS[name]}}


def render_call(call: Mapping[str, Any]) -> str:
    """Write a call as models of the Hermes format do."""
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def render_decision(decision: Decision, value: int, *, is_misread: bool = False) -> str:
    """Write the step that decides. is_misread: "at most" read as "more than", or the reverse."""
    asks_at_most = decision.says_at_most != is_misread
    first, second = decision.if_more, decision.otherwise
    if decision.says_at_most:
        first, second = second, first
    words = "at most" if asks_at_most else "more than"
    if (value <= decision.limit) is asks_at_most:
        return f"{value} is {words} {decision.limit}: {first}."
    return f"{value} is not {words} {decision.limit}. Otherwise: {second}."


def make_task(seed: int) -> Task:
    """Make the task of `seed`."""
    rng = random.Random(seed)
    days = rng.choice(HELDOUT_DAYS if seed in HELDOUT_SEEDS else TRAINING_DAYS)
    spec = Story().make(rng, days, rng.random() < 0.3)
    story, _, question = spec.text.rpartition(" How many ")
    thing = question.partition(" has ")[0]
    if thing not in THINGS:
        raise ValueError(f"the story ends with another question: {question}")
    value = _find_end(spec)
    if_more, otherwise, *_ = tools = rng.sample(sorted(TOOLS), OFFERED)
    rng.shuffle(tools)
    away = rng.choice([off for off in range(-NEAR, NEAR + 1) if off and 10 <= value + off <= 99])
    decision = Decision(
        thing=thing,
        limit=value + away,
        if_more=if_more,
        otherwise=otherwise,
        says_at_most=rng.random() < AT_MOST,
    )
    text = f"{story} {_write_condition(decision)}"
    name = if_more if value > decision.limit else otherwise
    return Task(
        id=f"tool-{seed}",
        text=text,
        tools=tuple(tools),
        spec=replace(spec, text=text, careless=True),
        decision=decision,
        call=build_call(decision, name, value),
    )


def make_tasks(seeds: Sequence[int], count: int) -> list[Task]:
    """Make the first `count` tasks of a range of seeds."""
    return [make_task(seed) for seed in seeds[:count]]


def _find_end(spec: Spec) -> int:
    value = spec.start
    for move in spec.moves:
        for term in map(int, move.terms):
            value = value * term if move.op == "*" else value + (term if move.op == "+" else -term)
    return value


def _write_condition(decision: Decision) -> str:
    more, other = decision.if_more, decision.otherwise
    if decision.says_at_most:
        return f"At most {decision.limit}: {other} them. Otherwise: {more} them."
    return f"More than {decision.limit}: {more} them. Otherwise: {other} them."
