r"""Finds what a path without a `\boxed{...}` names as its answer: `Answer: 42`, `#### 42`,
`<answer>42</answer>`, a box that was cut.

Such an answer is less certain than a box, so it counts only in a run none of whose paths has one.
"""

from __future__ import annotations

import re

from flashedge.answers.braces import find_closing_brace
from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize

MAX_LENGTH = 200
"""Characters of an answer. What is longer is an explanation."""

_TAG = re.compile(
    r"<(?:final_)?answer>((?:[^<]|<(?!/?(?:final_)?answer>))*+)(?:</|\Z)", re.IGNORECASE
)
_NAMES = re.compile(
    r"(?:^[\s>*_#-]{0,20}|\b(?:the|my|our)\s)(?:(?:final|correct)\s)?answer\b[*_]{0,3}\s?"
    r"(?::|=|is\b:?)[*_\s]{0,8}",
    re.IGNORECASE,
)
_HEADING = re.compile(r"[\s>*_#]{1,20}(?:final\s)?answer[*_:\s]{0,8}", re.IGNORECASE)
_HASHES = re.compile(r"####\s?(?=\S)")
_CUT_BOX = re.compile(r"\\(?:boxed|fbox)\s?\{([^\n]{1,100})\Z")
_MATH = re.compile(r"\$[^$]+\$|\\\((?:[^\\]|\\(?!\)))+\\\)")
_END = re.compile(r"\.\s|\.\Z|,? (?:because|since|which|where|so|as)\b")
_MARKS = "*_` \t"
_DENIES = re.compile(r"(?:not|wrong|incorrect|correct|that|to)\b", re.IGNORECASE)


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
        below = line if line.strip() else below
    cut = _CUT_BOX.search(text, max(0, len(text) - MAX_LENGTH))
    return _clean(cut[1]) if cut and find_closing_brace(text, cut.start(1)) is None else None


def _read_line(line: str, below: str) -> str | None:
    """The answer that a line names, for a heading in the line below it."""
    names = list(_NAMES.finditer(line))
    if names and (answer := _clean(line[names[-1].end() :])):
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
    return None if not text or len(text) > MAX_LENGTH or _DENIES.match(text) else text
