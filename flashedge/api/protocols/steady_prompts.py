"""Leaves out of instructions what coding agents change in each request (feature `steady_prompts`).

A prompt's KV is found again up to the first token that differs, and instructions stand first.
Claude Code writes a billing header before them, with a hash of the request, and counts down the
tokens that are left. No model needs either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAME = "x-anthropic-billing-header:"
_HEADER = re.compile(rf"{_NAME}[ \t]*(?:[\w-]+=[^;\s]*;?[ \t]*)+\n?|^{_NAME}.*\n?", re.MULTILINE)
"""Instructions may follow its last pair on the same line."""
_COUNTDOWN = re.compile(r"\n?<total_tokens>[^<\n]{1,40} tokens left</total_tokens>")
_TELLS = ("system", "developer")
"""Roles of instructions. A tuple: a role may be anything that JSON is."""


def steady(text: str) -> str:
    """Instructions without what changes in each request."""
    return _COUNTDOWN.sub("", _HEADER.sub("", text))


def steady_prompt(body: dict[str, Any]) -> None:
    """Leave what changes out of the instructions of a request of any protocol, and parts and
    messages that hold nothing else."""
    for holder, name in _list_places(body):
        value = holder[name]
        if isinstance(value, str):
            holder[name] = steady(value)
        elif isinstance(value, list):
            holder[name] = [kept for part in value if (kept := _steady_part(part)) is not None]
    for name in ("system", "instructions"):
        if body.get(name) in ("", []):
            del body[name]
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            body[name] = [turn for turn in turns if not (_tells(turn) and not turn["content"])]


def _list_places(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    yield from ((body, name) for name in ("system", "instructions") if name in body)
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            yield from ((turn, "content") for turn in turns if _tells(turn))


def _tells(turn: Any) -> bool:
    if not isinstance(turn, dict) or turn.get("role") not in _TELLS:
        return False
    return isinstance(turn.get("content"), str | list)


def _steady_part(part: Any) -> Any:
    """A part of a text, or None where nothing is left of it."""
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    text = steady(part["text"])
    if text == part["text"]:
        return part
    return {**part, "text": text} if text.strip() else None
