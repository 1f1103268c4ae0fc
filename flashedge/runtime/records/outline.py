"""The shape of a stored run: which nodes grew from which, and how long each became.

Reading whole events takes a hundred times as long, since they hold every token.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from flashedge.types import NodeId

_LEVELS_AND_STEPS = """
SELECT event ->> '$.type', event ->> '$.parent', event -> '$.children', event ->> '$.node',
  json_array_length(event, '$.token_ids'), event ->> '$.finish'
FROM events
WHERE run_id = ? AND event ->> '$.type' IN ('NodesExpanded', 'StepCompleted')
ORDER BY seq
"""
_PROMPT_TOKENS = "SELECT result ->> '$.usage.prompt_tokens' FROM runs WHERE id = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Nodes that began to generate together."""

    parent: NodeId
    children: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedStep:
    """A node that is complete."""

    node: NodeId
    tokens: int
    finish: str
    """A value of FinishReason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutline:
    """The shape of one run."""

    prompt_tokens: int | None
    """None for a run without a result."""

    parts: tuple[Level | CompletedStep, ...]
    """In the order in which they happened."""


def query_outline(db: sqlite3.Connection, run_id: str) -> RunOutline:
    """Read a run's shape. It has no part for an unknown run."""
    found = db.execute(_PROMPT_TOKENS, (run_id,)).fetchone()
    rows = db.execute(_LEVELS_AND_STEPS, (run_id,)).fetchall()
    return RunOutline(
        prompt_tokens=None if found is None else found[0], parts=tuple(map(_parse_part, rows))
    )


def _parse_part(row: tuple[str, int, str, int, int, str]) -> Level | CompletedStep:
    kind, parent, children, node, tokens, finish = row
    if kind == "StepCompleted":
        return CompletedStep(node=NodeId(node), tokens=tokens, finish=finish)
    listed = tuple(NodeId(child[0]) for child in json.loads(children))
    return Level(parent=NodeId(parent), children=listed)
