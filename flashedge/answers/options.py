"""The letter of a multiple-choice answer: `B`, `(B)`, `B) 5` and `B: the option` are one answer."""

from __future__ import annotations

import re

_OPTION = re.compile(
    r"(?:(?i:option|choice|answer)[:\s]\s*)?"
    r"(?:[(\[]\s?([A-J])\s?[)\]][.:]?|([A-J])([).:]?))(\s*)(.*)",
    re.DOTALL,
)
_OPTION_TEXT = re.compile(
    r"(?!(?:and|or)\b|[A-Z]\Z)"
    r"(?:[\w$]|[\"'“]\w|-\d|\\(?:\$|\(|\{|text|[dt]?frac|sqrt|pi|infty|left|begin|mathrm)|[(\[]-?\d)"
)
_OTHER_OPTION = re.compile(r"\b[A-J]\s*[:)=]")


def find_option(text: str) -> str | None:
    """The letter of an answer that is an option, alone or with its text; None for others.

    The text counts for nothing. In doubt an answer is no option: `B+5` and `A(3,4)` are formulas,
    `A:B` is a ratio, and `A: 5, B: 7` names two things.
    """
    match = _OPTION.fullmatch(text)
    if match is None:
        return None
    bracketed, bare, mark, gap, rest = match.groups()
    if not rest:
        return bracketed or bare
    if not _OPTION_TEXT.match(rest) or _OTHER_OPTION.search(rest):
        return None
    is_set_off = bracketed or (mark and (gap or (mark != "." and not rest[0].isalpha())))
    return (bracketed or bare) if is_set_off else None
