"""Writes JSON answers so that equal ones are spelled alike."""

from __future__ import annotations

import json
import re

_BLANKS = re.compile(r"\s+")
_OBJECT = re.compile(r"[{\[]")


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
