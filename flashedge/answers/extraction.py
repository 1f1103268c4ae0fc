r"""Finds the answer in the text of a path: what stands in its last `\boxed{...}`, or its last step.

What a path without a box names as its answer is found by `unboxed`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flashedge.answers.braces import BRACE
from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize

_BOX = re.compile(
    r"\\(?:[bB]oxed|fbox|framebox)\s*+(?:\[[^\[\]{}]{0,40}\]\s*+){0,2}"
    r"(?:(\{)|(-?\d++(?:,\d{3})*+(?:\.\d++)?))"
)
r"""How a box begins, `\boxed{` or `\framebox[3em]{`, or the whole box of a number, `\boxed 5`."""
_BLANK = re.compile(
    r"(?:[\s~${}.…?_]|\\[ ,;:!>_]|\\(?:q?quad|[lc]?dots|square|text|mathrm)(?![a-z]))*+"
)
_LINK = re.compile(
    r"(?:[\s$}]|\\[ ,;:!()]|\\q?quad\b|\\text\s?\{)*+(?:[,;&]|and\b|or\b)"
    r"(?:[\s$},;&]|\\[ ,;:!()]|\\q?quad\b|\\text\s?\{|and\b|or\b)*+"
)
"""What links two boxes to a list."""
_NAME = re.compile(r"(?<![\w\\])([a-zA-Z](?:_\w|_\{\w{1,3}\})?)\s?=(?:[\s$]|\\[(\[]){0,4}\Z")
r"""The name of a box, as in `x = \boxed{3}`."""
_LONGEST_NAME = 20
_THREE_DIGITS = re.compile(r"\d{3}(?!\d)")

Box = tuple[int, int, int, int]
"""Indices of a box's start and end, and between them of its contents' start and end."""


def extract_answer(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance, stripped; None if there is none.

    A box without contents, or with dots in their place, is no answer. Of nested boxes the inner one
    counts. Boxes that only commas, "and" or "or" link are one list, `3,5,7`; if each has a name,
    `x=3,y=5`. After any other text a box corrects the one before. Linear in the text.
    """
    boxes = [box for box in _list_boxes(text) if not _BLANK.fullmatch(text, box[2], box[3])]
    if not boxes:
        return None
    first = len(boxes) - 1
    name, start = _find_name(text, boxes[first])
    names = [name]
    while first and _LINK.fullmatch(text, boxes[first - 1][1], start):
        name, start = _find_name(text, boxes[first - 1]) if name else ("", boxes[first - 1][0])
        if names[-1] and not name:
            break
        first -= 1
        names.append(name)
    is_named = len(set(names)) > 1
    parts: dict[object, str] = {}
    for name, (_, _, start, end) in zip(reversed(names), boxes[first:], strict=True):
        content = text[start:end].strip()
        form = normalize(content)
        key = parse_number(form) or form
        if is_named:
            parts.setdefault((name, key), f"{name}={content}")
        else:
            parts.setdefault(key, content)
    joined = ",".join(parts.values())
    if any(_THREE_DIGITS.match(part) for part in list(parts.values())[1:]):
        return rf"\{{{joined}\}}"  # 2 and 300 are not 2,300
    return joined


def _find_name(text: str, box: Box) -> tuple[str, int]:
    """The name of a box, empty if it has none, and where the box begins with it."""
    match = _NAME.search(text, max(0, box[0] - _LONGEST_NAME), box[0])
    return (match[1], match.start()) if match else ("", box[0])


def _list_boxes(text: str) -> list[Box]:
    """The boxes that have an end, in the order in which they begin."""
    found = list(_BOX.finditer(text))
    boxes = [(m.start(), m.end(), m.start(2), m.end(2)) for m in found if m[2]]
    openings = {m.end(): m.start() for m in found if m[1]}
    opened: list[int] = []
    for match in BRACE.finditer(text, min(openings) - 1) if openings else ():
        if match[0] == "{":
            opened.append(match.end())
        elif match[0] == "}" and opened and (start := opened.pop()) in openings:
            boxes.append((openings[start], match.end(), start, match.start()))
    return sorted(boxes)


def extract_open_answer(steps: Sequence[str]) -> str | None:
    """The answer to an open-ended problem: the box of the last step, or else the whole step.

    None if every step is blank.
    """
    last = next((step for step in reversed(steps) if step.strip()), "")
    return extract_answer(last) or last.strip() or None
