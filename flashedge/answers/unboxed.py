r"""Finds what a path without a `\boxed{...}` names as its answer: `Answer: 42`, `#### 42`,
`<answer>42</answer>`.

Such an answer is less certain than a box, so it counts only in a run none of whose paths has one.
A box that a token limit cut is no answer: its number may go on.
"""

from __future__ import annotations

import re

from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize

MAX_LENGTH = 200
"""Characters of an answer. What is longer is an explanation."""

_TAG = re.compile(
    r"<(?:final_)?answer>((?:[^<]|<(?!/?(?:final_)?answer>))*+)(?:</|\Z)", re.IGNORECASE
)
_IS = r"(?:answer|(?<=correct\s)(?:option|choice))\b[*_]{0,3}\s?(?::|=|is\b:?+)[*_\s]{0,8}+"
_LINE = re.compile(rf"[\s>*_#-]{{0,20}}(?:(?:final|correct)\s)?{_IS}", re.IGNORECASE)
_WITHIN = re.compile(rf"(?:(?<=\*\*)|(?<=[.!?]\s))(?:(?:final|correct)\s)?{_IS}", re.IGNORECASE)
"""Behind a sentence, or in bold."""
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
    """The answer that a text names last, by a tag or else in a line; None if it names none.

    Linear in the text.
    """
    tagged = [answer for tag in _TAG.finditer(text) if (answer := _clean(tag[1]))]
    if tagged:
        return tagged[-1]
    below = ""
    for line in reversed(text.splitlines()):
        if answer := _read_line(line, below):
            return answer
        below = line if _has_text(line) else below
    return None


def _read_line(line: str, below: str) -> str | None:
    """The answer that a line names, for a heading in the line below it."""
    named = [*_SENTENCE.finditer(line), *_WITHIN.finditer(line)]
    start = max(named, key=lambda match: match.end()) if named else _LINE.match(line)
    if start and (answer := _clean(line[start.end() :])):
        return answer
    if _HEADING.fullmatch(line):
        return _clean(below)
    if hashes := _HASHES.match(line):
        answer = line[hashes.end() :].strip(_MARKS)
        is_number = parse_number(normalize(answer)) is not None
        return answer if is_number or not below else None  # else it may be a heading of Markdown
    return None


def _clean(text: str) -> str | None:
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
