"""Finds the tool calls of answers, and writes JSON with sorted keys and no whitespace."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BLANKS = re.compile(r"\s+")
_OPENING = re.compile(r"[{\[]")
_TOKEN = re.compile(
    r"""\s*+([{}\[\],:]|"(?:[^"\\]|\\.)*+"|[-+.\w]++)""",  # a sign, a string, a number or a name
    re.DOTALL,
)
MAX_DEPTH = 64
MAX_RESCANS = 4


def list_call_marks(guidance: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The texts with which the model begins a tool call, from the structural tag of the request's
    `engine.base.ExtendRequest.guidance`."""
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
    """The text from its first tool call on, without the reasoning before."""
    starts = [start for mark in marks if (start := text.find(mark)) >= 0]
    return text[min(starts) :] if starts else None


def write_canonically(text: str) -> str | None:
    """The text with each of its JSON objects and lists in one spelling: sorted keys, no
    whitespace. 46 and 46.0 stay different.

    Text around them, such as the tags of a tool call, loses repeated whitespace. None for a
    blank text. Linear: once `MAX_RESCANS` times the text were scanned, the rest counts as text, and
    so do values nested deeper than `MAX_DEPTH`.
    """
    parts: list[str] = []
    begin = at = 0
    left = MAX_RESCANS * len(text)
    while left > 0 and (found := _OPENING.search(text, at)) is not None:
        at, is_whole = _find_end(text, found.start(), left)
        left -= at - found.start()
        spelled = _respell(text[found.start() : at]) if is_whole else None
        if spelled is None:
            at = found.end()
        else:
            parts += [_BLANKS.sub(" ", text[begin : found.start()]), spelled]
            begin = at
    parts.append(_BLANKS.sub(" ", text[begin:]))
    return "".join(parts).strip() or None


def _find_end(text: str, start: int, most: int) -> tuple[int, bool]:
    """How far the JSON value that begins at `start` was read, and whether it ends there."""
    depth, at = 0, start
    while at - start < most and (token := _TOKEN.match(text, at)) is not None:
        at = token.end()
        kind = token[1]
        if kind in ("{", "["):
            depth += 1
        elif kind in ("}", "]"):
            depth -= 1
        if depth == 0:
            return at, True
        if depth > MAX_DEPTH:
            break
    return at, False


def _respell(value: str) -> str | None:
    try:
        spelled = json.dumps(
            json.loads(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
    except ValueError:
        return None
    return spelled.encode(errors="backslashreplace").decode()  # a lone surrogate stays escaped
