"""Bounds guided decoding: the blanks in tool calls, and the time to compile a grammar.

JSON allows any number of blanks between its parts, and a small model often prefers them to the
other tokens that a grammar allows. vLLM's `disable_any_whitespace` does not cover the grammars of
tool calls, so the limit is written into them.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flashedge.errors import RequestError

if TYPE_CHECKING:
    from vllm import SamplingParams

MOST_BLANKS = 2
"""Most blanks in a row between two parts of a tool call's arguments. Chosen by hand: none would
forbid the usual blank after a colon, and twenty would let a small model waste tokens."""
MOST_PROPERTIES = 2000
"""Most properties of a schema with one object. For several, the squares of their numbers add up, as
compile times do. 1,500 properties take a second, 5,000 minutes, in which other grammars wait."""
MOST_CHOICES = 20_000
"""Most values of all enumerations of a schema together. 60,000 take 15 seconds to compile."""


def bound_guidance(params: SamplingParams) -> None:
    """Limit the blanks in a tool call's grammar, if the request has one. Raises RequestError for a
    schema that is nested too deeply or would take too long to compile."""
    guided = params.structured_outputs
    if guided is None:
        return
    try:
        check_size(json.loads(guided.json) if isinstance(guided.json, str) else guided.json)
        if guided.structural_tag is not None:
            tag = json.loads(guided.structural_tag)
            check_size(tag)
            _bound_blanks(tag)
            guided.structural_tag = json.dumps(tag)
    except RecursionError:
        raise RequestError("the request's schema is nested too deeply") from None
    except ValueError:
        pass  # vLLM refuses what is no JSON


def check_size(schema: Any) -> None:
    """Raise RequestError for more than `MOST_PROPERTIES` or `MOST_CHOICES`."""
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


def _bound_blanks(node: Any) -> None:
    """Limit the blanks of each JSON format in a structural tag."""
    if isinstance(node, list):
        for part in node:
            _bound_blanks(part)
    elif isinstance(node, dict):
        if node.get("type") == "json_schema" and "json_schema" in node:
            if node.get("max_whitespace_cnt") is None:
                node["max_whitespace_cnt"] = MOST_BLANKS
            return  # a schema holds no further format
        for part in node.values():
            _bound_blanks(part)
