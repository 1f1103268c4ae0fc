"""Finds the tool calls of answers, and writes JSON in one spelling."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BLANKS = re.compile(r"\s+")
_OPENING = re.compile(r"[{\[]")
_TOKEN = re.compile(
    r"""\s*+([{}\[\],:]|"(?>(?:[^"\\]|\\.)*)"|[-+.\w]++)""",  # mark, string, number, name
    re.DOTALL,
)
MAX_DEPTH = 64
"""Chosen by hand: arguments of tools nest a few levels, and Python's parser gives up near 1,000."""
MAX_RESCANS = 4
"""Chosen by hand: with one, a stray bracket could use up the scan of the value after it."""


def list_call_marks(guidance: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The texts that begin a tool call, as the structural tag of an
    `engine.base.ExtendRequest.guidance` names them; empty without a tag."""
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
    """The text from the first of `marks` on, without the reasoning before; None without a call."""
    starts = [start for mark in marks if (start := text.find(mark)) >= 0]
    return text[min(starts) :] if starts else None


def write_canonically(text: str) -> str | None:
    """Rewrite each JSON object and list in a text with sorted keys and no whitespace. 46 and 46.0
    stay different. In the text around them, such as the tags of a tool call, each run of whitespace
    becomes a space. Returns None for a blank text.

    Of a value deeper than `MAX_DEPTH` the outer levels count as text. To keep the work linear, the
    rest counts as text too once `MAX_RESCANS` times the text's length were scanned.
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


def _find_end(text: str, start: int, max_chars: int) -> tuple[int, bool]:
    """How far the JSON value that begins at `start` was read, and whether it ends there."""
    depth, at = 0, start
    while at - start < max_chars and (token := _TOKEN.match(text, at)) is not None:
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
    """The JSON value with sorted keys and no whitespace; None if it is no JSON."""
    try:
        spelled = json.dumps(
            json.loads(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
    except ValueError:
        return None
    return spelled.encode(errors="backslashreplace").decode()  # a lone surrogate stays escaped
