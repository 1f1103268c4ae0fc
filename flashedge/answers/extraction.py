r"""Finds the answer in the text of a path: the last `\boxed{...}`, or the last step."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*+\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a backslash with what it escapes."""


def extract_answer(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance, stripped; None if there is none.

    An empty box is no answer. Of nested boxes the inner one counts. Linear in the text: one pass
    finds the boxes, a second one, where the last box has no end, the ends of all.
    """
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    start, end = starts[-1], find_closing_brace(text, starts[-1])
    if end is None:
        start, end = _find_last_whole(text, starts)
    return None if end is None else text[start:end].strip() or None


def _find_last_whole(text: str, starts: Sequence[int]) -> tuple[int, int | None]:
    """The last of the boxes that has an end, and the index of its closing brace. starts: indices
    behind the boxes' opening braces, which no backslash escapes."""
    boxes = frozenset(starts)
    opened: list[int] = []
    found: tuple[int, int | None] = (0, None)
    for match in _BRACE.finditer(text, starts[0] - 1):
        if match[0] == "{":
            opened.append(match.end())
        elif match[0] == "}" and opened and (start := opened.pop()) in boxes and start > found[0]:
            found = start, match.start()
    return found


def find_closing_brace(text: str, start: int) -> int | None:
    r"""Index of the brace that closes the one before `start`; `\{` and `\}` are skipped."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def extract_open_answer(steps: Sequence[str]) -> str | None:
    """The answer to an open-ended problem: the box of the last step, or else the whole step.

    None if every step is blank.
    """
    last = next((step for step in reversed(steps) if step.strip()), "")
    return extract_answer(last) or last.strip() or None
