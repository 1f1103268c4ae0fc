"""Finds the tool calls of answers, and writes JSON so that equal values are spelled alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BLANKS = re.compile(r"\s+")
_OBJECT = re.compile(r"[{\[]")


def list_call_marks(guidance: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The texts with which the model begins a tool call, from the grammar of the request.

    guidance: see `engine.base.ExtendRequest.guidance`. Its structural tag names the texts. Empty
    where it has none.
    """
    tag = (guidance or {}).get("structural_tag")
    return tuple(dict.fromkeys(_walk_marks(json.loads(tag)))) if tag else ()


def _walk_marks(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for part in node:
            yield from _walk_marks(part)
    elif isinstance(node, dict):
        if isinstance(begin := node.get("begin"), str) and begin:
            yield begin
            return
        for name, part in node.items():
            if name != "json_schema":
                yield from _walk_marks(part)


def find_calls(text: str, marks: Sequence[str]) -> str | None:
    """The text from its first tool call on, without the reasoning before. None without a call."""
    starts = [start for mark in marks if (start := text.find(mark)) >= 0]
    return text[min(starts) :] if starts else None


def write_canonically(text: str) -> str | None:
    """The text with each of its JSON objects and lists in one spelling: sorted keys, no blanks.

    What stands around them, such as the tags of a tool call, loses repeated blanks. None for a
    blank text.
    """
    decoder = json.JSONDecoder()
    parts: list[str] = []
    at = 0
    while (found := _OBJECT.search(text, at)) is not None:
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            parts.append(_collapse(text[at : found.end()]))
            at = found.end()
            continue
        spelled = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        parts += [_collapse(text[at : found.start()]), spelled]
        at = end
    parts.append(_collapse(text[at:]))
    return "".join(parts).strip() or None


def _collapse(text: str) -> str:
    return _BLANKS.sub(" ", text)
