"""Keeps a generator that is decoded by a grammar from writing blanks without end, and grammars from
taking minutes to compile.

JSON allows any number of blanks between its parts, and a small model that is held to a grammar it
does not know often prefers them to everything else. vLLM's `disable_any_whitespace` does not cover
the grammars of tool calls, so the limit is written into them.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flashedge.errors import RequestError

if TYPE_CHECKING:
    from vllm import SamplingParams

MOST_BLANKS = 2
"""Blanks in a row between two parts of a tool call's arguments."""
MOST_PROPERTIES = 2000
"""Properties of one object in a schema; several objects may have fewer. The time to compile them
grows with their square: 1,500 take a second, 5,000 minutes, and other grammars wait
meanwhile."""
MOST_CHOICES = 20_000
"""Values of all enumerations of a schema together. 60,000 take 15 seconds."""


def bound_guidance(params: SamplingParams) -> None:
    """Limit the blanks in the grammar of a tool call, if the request has one. Raises RequestError
    for a schema that would take too long to compile."""
    guided = params.structured_outputs
    if guided is None:
        return
    try:
        check_size(json.loads(guided.json) if isinstance(guided.json, str) else guided.json)
    except RecursionError:
        raise RequestError("the request's schema is nested too deeply") from None
    except ValueError:
        pass  # what is no JSON, vLLM refuses
    if guided.structural_tag is not None:
        tag = json.loads(guided.structural_tag)
        check_size(tag)
        _bound(tag)
        guided.structural_tag = json.dumps(tag)


def check_size(schema: Any) -> None:
    """Raises RequestError for more than `MOST_PROPERTIES` or `MOST_CHOICES`."""
    squares = choices = 0
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            squares += len(found) ** 2 if isinstance(found := node.get("properties"), dict) else 0
            choices += len(found) if isinstance(found := node.get("enum"), list) else 0
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    if squares > MOST_PROPERTIES**2 or choices > MOST_CHOICES:
        raise RequestError(
            f"the request's schema has more than {MOST_PROPERTIES} properties or {MOST_CHOICES}"
            " choices, whose grammar would take minutes to compile",
            hint="give a smaller schema, or fewer tools",
        )


def _bound(node: Any) -> None:
    if isinstance(node, list):
        for part in node:
            _bound(part)
    elif isinstance(node, dict):
        if node.get("type") == "json_schema" and "json_schema" in node:
            if node.get("max_whitespace_cnt") is None:
                node["max_whitespace_cnt"] = MOST_BLANKS
            return  # what is in the schema itself is no format
        for part in node.values():
            _bound(part)
