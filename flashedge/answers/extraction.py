r"""Finds the answer in the text of a path: the contents of its last `\boxed{...}`, or its last
step if the answer is open-ended.

A path without a box may name its answer: `Answer: 42`, `#### 42`, `<answer>42</answer>`. That is
less certain, so it counts only if no path of the run has a box. An unclosed box is no answer, since
a token limit may have cut its number.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import BRACE, normalize

_BOX = re.compile(
    r"\\(?:[bB]oxed|fbox|framebox)\s*+(?:\[[^\[\]{}]{0,40}\]\s*+){0,2}"
    r"(?:(\{)|(-?\d++(?>(?:,\d{3})*)(?:\.\d++)?))"
)
r"""How a box begins, `\boxed{` or `\framebox[3em]{`, or the whole box of a number, `\boxed 5`."""
_BLANK = re.compile(
    r"(?>(?:[\s~${}.…?_]|\\[ ,;:!>_]|\\(?:q?quad|[lc]?dots|square|text|mathrm)(?![a-z]))*)"
)
"""Contents of a box that is left blank: dots, spaces or a question mark."""
_LINK = re.compile(
    r"(?>(?:[\s$}]|\\[ ,;:!()]|\\q?quad\b|\\text\s?\{)*)(?:[,;&]|and\b|or\b)"
    r"(?>(?:[\s$},;&]|\\[ ,;:!()]|\\q?quad\b|\\text\s?\{|and\b|or\b)*)"
)
"""What stands between two boxes of one list."""
_NAME = re.compile(r"(?<![\w\\])([a-zA-Z](?:_\w|_\{\w{1,3}\})?)\s?=(?:[\s$]|\\[(\[]){0,4}\Z")
r"""The name of a box, as in `x = \boxed{3}`."""
_NAME_WINDOW = 20  # characters searched before a box; `_NAME` matches at most 17
_THREE_DIGITS = re.compile(r"\d{3}(?!\d)")


class Box(NamedTuple):
    """Where a box with its command stands in a text, and where its contents do, in characters. Both
    intervals are half-open."""

    start: int
    end: int
    inner_start: int
    inner_end: int


def extract_answer(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}` whose braces balance, stripped; None if there is none.

    A box without contents, or with dots in their place, is no answer. Of nested boxes the inner one
    counts. Boxes that only commas, "and" or "or" link are one list, `3,5,7`; boxes of several names
    are `x=3,y=5`. After any other text a box replaces the one before. Linear in the text's length.
    """
    boxes = _list_boxes(text)
    boxes = [b for b in boxes if not _BLANK.fullmatch(text, b.inner_start, b.inner_end)]
    if not boxes:
        return None
    first = len(boxes) - 1
    name, start = _find_name(text, boxes[first])
    names = [name]
    while first and _LINK.fullmatch(text, boxes[first - 1].end, start):
        name, start = _find_name(text, boxes[first - 1]) if name else ("", boxes[first - 1].start)
        if names[-1] and not name:
            break
        first -= 1
        names.append(name)
    is_named = len(set(names)) > 1
    parts: dict[object, str] = {}
    for name, box in zip(reversed(names), boxes[first:], strict=True):
        content = text[box.inner_start : box.inner_end].strip()
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
    """(name, start): the name before a box, or "", and the index where the name or box begins."""
    match = _NAME.search(text, max(0, box.start - _NAME_WINDOW), box.start)
    return (match[1], match.start()) if match else ("", box.start)


def _list_boxes(text: str) -> list[Box]:
    """The closed boxes in the order in which they begin."""
    found = list(_BOX.finditer(text))
    boxes = [Box(m.start(), m.end(), m.start(2), m.end(2)) for m in found if m[2]]
    openings = {m.end(): m.start() for m in found if m[1]}
    opened: list[int] = []
    for match in BRACE.finditer(text, min(openings) - 1) if openings else ():
        if match[0] == "{":
            opened.append(match.end())
        elif match[0] == "}" and opened and (start := opened.pop()) in openings:
            boxes.append(Box(openings[start], match.end(), start, match.start()))
    return sorted(boxes)


def extract_open_answer(steps: Sequence[str]) -> str | None:
    """The box of the last step that is not blank, or else that whole step; None without one."""
    last = next((step for step in reversed(steps) if step.strip()), "")
    return extract_answer(last) or last.strip() or None


# ---------------------------------------------------------------- answers without a box

MAX_LENGTH = 200
"""Most characters of a named answer. Chosen by hand: 20 would refuse sentences, and 2,000 would
take whole solutions for answers."""

_TAG = re.compile(
    r"<(?:final_)?answer>((?>(?:[^<]|<(?!/?(?:final_)?answer>))*))(?:</|\Z)", re.IGNORECASE
)
_IS = r"(?:answer|(?<=correct\s)(?:option|choice))\b[*_]{0,3}\s?(?::|=|is\b:?+)[*_\s]{0,8}+"
_LINE = re.compile(rf"[\s>*_#-]{{0,20}}(?:(?:final|correct)\s)?{_IS}", re.IGNORECASE)
_WITHIN = re.compile(rf"(?:(?<=\*\*)|(?<=[.!?]\s))(?:(?:final|correct)\s)?{_IS}", re.IGNORECASE)
"""Finds after the end of a sentence or in bold what `_LINE` finds at the start of a line."""
_SENTENCE = re.compile(
    rf"\b(?i:the|my|our)\s(?i:(?:final|correct)\s)?(?i:{_IS})(?=[^a-z]|(?:yes|no|true|false)\b)"
)
_HEADING = re.compile(
    r"(?:[\s>]*(?:#{2,6}|\*\*|__)[\s*_]*(?:final\s)?answer[*_:\s]{0,8}|(?:final\s)?answer:\s*)",
    re.IGNORECASE,
)
_HASHES = re.compile(r"####\s?(?=\S)")
_MATH = re.compile(r"\$[^$]+\$|\\\((?:[^\\]|\\(?!\)))+\\\)")
_END = re.compile(r"\.\s|\.\Z|,? (?:because|since|which|where|so|as)\b")
_MARKS = "*_` \t"
_DENIES = re.compile(r"(?:not|wrong|incorrect|correct|accurate|that|to)\b", re.IGNORECASE)


def find_named_answer(text: str) -> str | None:
    """The answer that a text names last, in a tag or else in a line; None if it names none."""
    tagged = [answer for tag in _TAG.finditer(text) if (answer := _read_answer(tag[1]))]
    if tagged:
        return tagged[-1]
    below = ""
    for line in reversed(text.splitlines()):
        if answer := _read_line(line, below):
            return answer
        below = line if _has_text(line) else below
    return None


def _read_line(line: str, below: str) -> str | None:
    """The answer that a line names. A heading names `below`, the next line that has text."""
    named = [*_SENTENCE.finditer(line), *_WITHIN.finditer(line)]
    start = max(named, key=lambda match: match.end()) if named else _LINE.match(line)
    if start and (answer := _read_answer(line[start.end() :])):
        return answer
    if _HEADING.fullmatch(line):
        return _read_answer(below)
    if hashes := _HASHES.match(line):
        answer = line[hashes.end() :].strip(_MARKS)
        # With text below it, a line that is no number may be a Markdown heading.
        return answer if not below or parse_number(normalize(answer)) is not None else None
    return None


def _read_answer(text: str) -> str | None:
    """The answer at the start of a text, without Markdown. None if the text starts with no answer,
    or with a word such as "not" that denies one."""
    text = text.strip()[: MAX_LENGTH + 1]
    math = _MATH.match(text)
    if math and not _MATH.search(text, math.end()):
        return math[0]
    if end := _END.search(text):
        text = text[: end.start()]
    text = text.strip(_MARKS)
    is_one = _has_text(text) and len(text) <= MAX_LENGTH and not text.endswith(":")
    return text if is_one and r"\boxed" not in text and not _DENIES.match(text) else None


def _has_text(text: str) -> bool:
    return any(char.isalnum() for char in text)
