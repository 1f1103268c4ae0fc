r"""Drops the units of answers: what stands behind a number, unless it changes the number's value.

Percent is a unit, too. The answers to one problem have one unit, which some paths leave out.
"""

from __future__ import annotations

import re

from flashedge.answers.numbers import SCALES

TEXT_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|boldsymbol|bm|emph"
    r"|underline|boxed|fbox)\s*\{"
)
_UNIT_TEXT = re.compile(
    r"(?:(?<=[\d})])|(?<=\\pi))\s*\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}(?:\^\s*\{?\d\}?)?$"
)
_UNIT_LETTER = re.compile(r"\s*(?:[mgshlLNJWAVKCF]|\(?[^\W_].*[^\W_].*)", re.DOTALL)
_UNITS = re.compile(
    r"(-?\d(?:[\d.,/]*\d)?)(?: ?(?:cm|mm|km|kg|mg|ft|lb|oz|hr|mi|ml|mL)| [^\W\d_]{3,})"
    r"(?: [^\W\d_]+)*(?:/ ?[^\W\d_]+)?(?:\^\{?\d\}?)?"
)
_FORMULA_UNITS = re.compile(
    r"(?=.*[\d\\])(?!.*(?<![a-zA-Z])[a-zA-Z]\s+\d)"
    r"((?:[^a-zA-Z\\]|\\[a-zA-Z]++|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z]))+)(?:(?<=[)}])| )"
    r"(?:square |cubic )?(?:units?|cm|mm|km|kg|inch(?:es)?|feet|foot|ft|yards?|miles?"
    r"|(?:centi|milli|kilo)?met(?:er|re)s?|degrees?|radians?|dollars?|cents?|hours?|minutes?|seconds?"
    r"|days?|weeks?|months?|years?|(?:kilo)?grams?|pounds?|ounces?|lit(?:er|re)s?|gallons?|people)"
    r"(?:\^\{?\d\}?)?"
)
"""A formula and its unit. After a number any word is taken for one (`_UNITS`)."""
_NOT_UNITS = re.compile(
    r"\b(?:and|or|mod|not|half|halves|thirds?|quarters?|tenths?|hundredths?|squared|cubed|factorial"
    r"|plus|minus|over|divided|choose|[ap]\.?m|noon|midnight|morning|afternoon|evening|night|b?ce?"
    r"|ad|abcd?|xyzw?|pqr|north|south|east|west|early|late|above|below|before|after|"
    + "|".join(SCALES)
    + r")\b"
    r"|\b(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|min|max|gcd|lcm)(?= ?[\\(]| \w\b)",
    re.IGNORECASE,
)


def drop_text_unit(text: str) -> str:
    r"""The text without a unit that a command such as `\text{...}` sets behind it."""
    return _UNIT_TEXT.sub(_judge_unit, text)


def drop_unit(text: str) -> str:
    """The text without a unit in plain letters."""
    if _NOT_UNITS.search(text):
        return text
    match = _UNITS.fullmatch(text) or _FORMULA_UNITS.fullmatch(text)
    return match[1].strip() if match else text


def _judge_unit(match: re.Match[str]) -> str:
    r"""`5\text{ cm}` is 5; `5\text{ million}`, `5\text{ PM}`, `5\mathrm{i}` and
    `5\text{ m } 20\text{ cm}` stay."""
    is_unit = _UNIT_LETTER.fullmatch(match[1]) and not _NOT_UNITS.search(match[1])
    is_first = TEXT_COMMAND.search(match.string, 0, match.start()) is None
    return "" if is_unit and is_first else match[0]
