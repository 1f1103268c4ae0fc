"""Keeps a generator that is decoded by a grammar from writing blanks for ever.

JSON allows any number of blanks between its parts, and a small model that is held to a grammar it
does not know often prefers them to everything else. vLLM's `disable_any_whitespace` does not cover
the grammars of tool calls, so the limit is written into them.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import SamplingParams

MOST_BLANKS = 2
"""Most blanks in a row between two parts of a tool call's arguments."""


def bound_blanks(params: SamplingParams) -> None:
    """Limit the blanks in the grammar of a tool call, if the request has one."""
    guided = params.structured_outputs
    if guided is None or guided.structural_tag is None:
        return
    tag = json.loads(guided.structural_tag)
    _bound(tag)
    guided.structural_tag = json.dumps(tag)


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
