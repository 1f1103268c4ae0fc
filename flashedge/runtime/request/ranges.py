"""The values that the fields of a request may have. `RunSpec` checks them, and the API's document
tells them."""

from __future__ import annotations

from collections.abc import Mapping

from flashedge.answers.equality import ANSWER_KINDS
from flashedge.types import JUDGED, MAX_SEED, MAX_STEP_ENTROPY, STEP_RULES

AGGREGATES = ("last", "min", "prod", "mean")
SELECTIONS = ("weighted", "majority", "best")
ROLES = ("system", "user", "assistant")
"""Of the messages of a problem."""

INTEGERS: Mapping[str, tuple[int, int]] = {
    "n": (1, 1024),
    "branching": (1, 1024),
    "seed": (0, MAX_SEED),
    "max_step_tokens": (1, 1 << 20),
    "max_steps": (1, 10_000),
    "min_step_tokens": (1, 1 << 20),
    "max_path_tokens": (1, 1 << 20),
    "max_tokens": (1, 1 << 20),
    "token_budget": (1, 1 << 40),
    "top_k": (0, 1 << 20),
}
"""Least and largest value."""

NUMBERS: Mapping[str, tuple[float, float]] = {
    "deadline_s": (0.001, 1e6),
    "step_entropy": (0.0, MAX_STEP_ENTROPY),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
}
"""Least and largest value."""

ABOVE = frozenset({"top_p"})
"""Numbers whose least value is itself too small."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "aggregate": AGGREGATES,
    "selection": SELECTIONS,
    "answers": ANSWER_KINDS,
    "step_rule": STEP_RULES,
    "judge": JUDGED,
}
