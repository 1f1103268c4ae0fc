"""The letter of a multiple-choice answer: `B`, `(B)`, `B) 5` and `B: the option` are one answer."""

from __future__ import annotations

import re

_LEAD = r"(?:(?i:option|choice|answer)[:\s]\s*)?"
_OPTION = re.compile(
    rf"{_LEAD}"
    r"(?:[(\[]\s?([A-J])\s?[)\]][.:]?|([A-J])([).:]?))(\s*)(.*)",
    re.DOTALL,
)
_SMALL_OPTION = re.compile(
    rf"{_LEAD}(?:\(\s?)?([a-h])\s?\)(?:[.:]?\s+(?!-|[a-z]\Z)(.+)|[.:]?)", re.DOTALL
)
"""A small letter is an option only before a bracket: `b` and `b: 5` are formulas."""
_OPTION_TEXT = re.compile(
    r"(?!(?:and|or)\b|[A-Z]\Z)"
    r"(?:[\w$]|[\"'“]\w|-\d|\\(?:\$|\(|\{|text|[dt]?frac|sqrt|pi|infty|left|begin|mathrm)|[(\[]-?\d)"
)
_OTHER_OPTION = re.compile(r"\b[A-J]\s*[:)=]")


def raise_option(form: str) -> str:
    """A normal form, but `B` for `(b)`, which may also be the formula `b`."""
    return form[1].upper() if _SMALL_OPTION.fullmatch(form) else form


def find_option(text: str) -> str | None:
    """The letter of an answer that is an option, alone or with its text; None for others. A small
    letter has its brackets.

    The text counts for nothing. In doubt an answer is no option: `B+5` and `A(3,4)` are formulas,
    `A:B` is a ratio, and `A: 5, B: 7` names two things.
    """
    if small := _SMALL_OPTION.fullmatch(text):
        letter, rest = small.groups()
        is_option = rest is None or (_OPTION_TEXT.match(rest) and not _OTHER_OPTION.search(rest))
        return f"({letter})" if is_option else None
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
