r"""One spelling for answers that differ in writing only: `\frac12`, `\dfrac{1}{2}` and `1/2`.

Fractions of integers become a/b, mixed numbers too (`12\frac{3}{5}` is 63/5). Numbers lose leading
and trailing zeros, and the unit after a number is dropped, `%` too. A multiple-choice option
becomes its letter. No operator is dropped but the plus sign of a number. Ref: the ideas of MATH's
`strip_string` (arXiv 2103.03874). Departure: `normalize` is idempotent.
"""

import functools
import re
import unicodedata
from fractions import Fraction

from flashedge.answers.numbers import SCALES, parse_words

BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a backslash and the character after it."""


def find_closing_brace(text: str, start: int) -> int | None:
    r"""Index of the brace that closes the one before `start`, if any; `\{` and `\}` are skipped."""
    depth = 1
    for match in BRACE.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


# ---------------------------------------------------------------- units

# Units are dropped, since all answers to a problem have the same one and some paths leave it out.
# Percent is a unit here. Words that change the value, such as "million", are not.

_TEXT_COMMAND = re.compile(
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
"""A formula and one of these units. After a plain number any word is a unit (`_UNITS`)."""
_NOT_UNITS = re.compile(
    r"\b(?:and|or|mod|not|half|halves|thirds?|quarters?|tenths?|hundredths?|squared|cubed|factorial"
    r"|plus|minus|over|divided|choose|[ap]\.?m|noon|midnight|morning|afternoon|evening|night|b?ce?"
    r"|ad|abcd?|xyzw?|pqr|north|south|east|west|early|late|above|below|before|after|"
    + "|".join(SCALES)
    + r")\b"
    r"|\b(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|min|max|gcd|lcm)(?= ?[\\(]| \w\b)",
    re.IGNORECASE,
)


def _drop_unit(text: str) -> str:
    """The text without a unit in plain letters."""
    if _NOT_UNITS.search(text):
        return text
    match = _UNITS.fullmatch(text) or _FORMULA_UNITS.fullmatch(text)
    return match[1].strip() if match else text


def _drop_text_unit(match: re.Match[str]) -> str:
    r"""`5\text{ cm}` becomes 5; `5\text{ PM}`, `5\mathrm{i}`, `5\text{ m } 20\text{ cm}` stay."""
    is_unit = _UNIT_LETTER.fullmatch(match[1]) and not _NOT_UNITS.search(match[1])
    is_first = _TEXT_COMMAND.search(match.string, 0, match.start()) is None
    return "" if is_unit and is_first else match[0]


# ---------------------------------------------------------------- symbols

_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−﹣－", "-"),
        "＋": "+",
        "⁄": "/",
        "∕": "/",
        "×": "\\times ",
        "⋅": "\\cdot ",
        "·": "\\cdot ",
        "π": "\\pi ",
        "∞": "\\infty ",
        "±": "\\pm ",
        "≈": "\\approx ",
        "θ": "\\theta ",
        "≤": "\\leq ",
        "≥": "\\geq ",
        "≠": "\\neq ",
        "∪": "\\cup ",
        "∩": "\\cap ",
        "…": "...",
        "÷": "/",
        "∅": "\\emptyset ",
    }
)
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_FRACTION = re.compile(r"[¼-¾⅐-⅞]")
_ROOT = re.compile(r"√\s?(\d+|[a-z])")
_DASH = re.compile(r"(?:^|(?<=[(\[{,=]))\s*–\s*(?=\d)")
_SQUARE_ROOT = re.compile(
    r"(\^\s?|(?<![a-zA-Z\\]))(?:sqrt\s?(?=[{\d])|\\?sqrt\s?\(((?>(?:[^()]|\([^()]*+\))*))\))"
)
_NAME = re.compile(
    r"(?<![a-zA-Z\\_])(?:(pi|theta|alpha|beta|gamma|phi|omega|infinity)(?![a-zA-Z])"
    r"|((?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp)"
    r"(?=\s?(?:[\\({\d^_]|[a-zA-Z](?![a-zA-Z]))))"
)
"""Constants, and functions with an argument. In `30 sec` there is none, so it is a time."""
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{3,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
_TILDE = re.compile(r"(?:^|(?<=[(∧∨&|→]))\s*~\s*(?=[a-zA-Z(])")


def write_in_latex(text: str) -> str:
    """Write symbols as LaTeX commands. A dash is a minus sign where a number can begin. A tilde
    is a space, except where an operand can begin: there it is a negation."""
    if not text.isascii():
        text = _FRACTION.sub(_write_fraction, text)
        text = _RAISED_RUN.sub(lambda m: f"^{{{''.join(map(_RAISED.__getitem__, m[0]))}}}", text)
        text = _LOWERED_RUN.sub(lambda m: f"_{{{''.join(map(_LOWERED.__getitem__, m[0]))}}}", text)
        text = _DASH.sub("-", _ROOT.sub(r"\\sqrt{\1}", text.translate(_SYMBOLS)))
    text = _SQUARE_ROOT.sub(_write_root, text)
    return _write_names(_TILDE.sub(r"\\neg ", text).replace("~", " "))


def _write_root(match: re.Match[str]) -> str:
    raised, inner = match.groups()
    if inner is None:
        return f"{raised}\\sqrt"
    return f"^{{\\sqrt{{{inner}}}}}" if raised else f"\\sqrt{{{inner}}}"


def _write_names(text: str) -> str:
    """Write names as LaTeX commands in a formula, which is a text without words except a unit."""
    named = _NAME.sub(lambda m: "\\infty" if m[1] == "infinity" else f"\\{m[0]}", text)
    is_formula = named != text and not _WORD.search(_ENVIRONMENT.sub(" ", _drop_unit(named)))
    return named if is_formula else text


def _write_fraction(match: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return f"\\frac{{{over}}}{{{under}}}"


# ---------------------------------------------------------------- options

_OPTION_LEAD = r"(?:(?i:option|choice|answer)[:\s]\s*)?"
_OPTION = re.compile(
    rf"{_OPTION_LEAD}"
    r"(?:[(\[]\s?([A-J])\s?[)\]][.:]?|([A-J])([).:]?))(\s*)(.*)",
    re.DOTALL,
)
_SMALL_OPTION = re.compile(
    rf"{_OPTION_LEAD}(?:\(\s?)?([a-h])\s?\)(?:[.:]?\s+(?!-|[a-z]\Z)(.+)|[.:]?)", re.DOTALL
)
"""A small letter is an option only before `)`: `b` and `b: 5` are formulas."""
_OPTION_TEXT = re.compile(
    r"(?!(?:and|or)\b|[A-Z]\Z)"
    r"(?:[\w$]|[\"'“]\w|-\d|\\(?:\$|\(|\{|text|[dt]?frac|sqrt|pi|infty|left|begin|mathrm)|[(\[]-?\d)"
)
_BRACKETED_LETTER = re.compile(r"\([a-h]\)")
_OTHER_OPTION = re.compile(r"\b[A-J]\s*[:)=]")


def capitalize_option(form: str) -> str:
    """Write the form `(b)` as the option `B`. `normalize` leaves it, since it may be a formula."""
    return form[1].upper() if _BRACKETED_LETTER.fullmatch(form) else form


def find_option(text: str) -> str | None:
    """The letter of an answer that is an option, with or without the option's text; else None.

    A small letter is returned in brackets, `(b)`. In doubt an answer is no option: `B+5` and
    `A(3,4)` are formulas, `A:B` is a ratio, and `A: 5, B: 7` names two things.
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


# ---------------------------------------------------------------- the normal form

_MAX_LENGTH = 1000  # characters: see `normalize`
_MAX_ROUNDS = 100  # guards against rules that undo each other; nested delimiters need a round each

_DROPPED = re.compile(
    r"\\left(?![a-zA-Z])\.?|\\right(?![a-zA-Z])\.?|\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])"
    r"|(?<!\\)\\[,!;:>]|\\q?quad(?![a-zA-Z])"
    r"|(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])|°|(?<=\d)\s?\\circ(?!\s*[\w(\\]))"
    r"(?:\s?[CF]\b)?(?!\s?\d)"
    r"|\\?%(?!\s*[\d(])|(?:US)?\\\$|[€£¥₹¢]"
)
_WRAPPED = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("```", "```"),
    ("`", "`"),
    ("***", "***"),
    ("**", "**"),
    ("__", "__"),
    ("*", "*"),
    ("_", "_"),
    ('"', '"'),
    ("“", "”"),
    ("<b>", "</b>"),
    ("<strong>", "</strong>"),
    ("<code>", "</code>"),
)
_BOLD = re.compile(r"(?<![\w*)}])\*\*(?=[^\s*])([^*]*[^\s*])\*\*(?![\w*({\\])")
_FRAC_NAME = re.compile(r"\\(?:[dtcs]|nice)frac(?![a-zA-Z])")
_SHORT_FRAC = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|(\d)\s*\{([^{}]*)\}|\{([^{}]*)\}\s*(\d))")
_SHORT_SQRT = re.compile(r"\\sqrt\s*(\d)")
_EXPONENT = re.compile(
    r"\^\s?(-\s?(?:\d+|[a-zA-Z])(?![\w.^])|\\sqrt\{[^{}]*\}|\\frac\{[^{}]*\}\{[^{}]*\})"
)
"""Exponents without braces of their own."""
_EMPTY = re.compile(r"\\varnothing(?![a-zA-Z])|\A\\\{\s*\\\}\Z")
_OPTIONS = re.compile(r"(?:\([A-J]\)|[A-J])(?:(?:, ?(?:and )?| and )(?:\([A-J]\)|[A-J]))+")
_INT_FRAC = re.compile(
    r"(?<![\w.})^])(-?)\\frac\s*\{\s*([+-]?\d+)\s*\}\s*\{\s*(\d+)\s*\}"
    r"(?!\s*[\d_.({\\^!]|\s*[a-zA-Z]{1,2}(?![a-zA-Z])|[a-zA-Z])"
)
_MIXED = re.compile(
    r"(?:^|(?<=[(\[,]))\s*(-?)\s*(\d+)"  # sign and whole part, alone or in a list
    r"(?:\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\s+(\d+)\s*/\s*(\d+))"
    r"(?=\s*(?:$|[,)\]])|\s+[^\W\d_]{2,}(?:\s[^\W\d_]+)*(?:\^\{?\d\}?)?$)"  # end, or a unit
)
_NAMED = re.compile(
    r"(?:m?\\angle\s?)?(?:[a-zA-Z]'{0,3}(?:_\{?\w+\}?|\d)?(?:\(\w\))?|[A-Z]{2,3})\s*"
    r"(?:=|\\approx(?![a-z]))\s*(?=[^=]+\Z)"
)
_LEAD = re.compile(
    r"(?:\\approx(?![a-z])|\\sim(?=\s?\d)|about |approximately "
    r"|(?:the )?(?:final )?answer(?: is|:))\s*(?=.)",
    re.IGNORECASE,
)
_BRACKET = re.compile(r"[(\[]|\\\{")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(
    r"[+-]?\d{1,3}(?:(?:,\d{3})+|(?:,\s?\d{3}){2,}|(?: \d{3})+)(?:\.\d*)?"
)
_NUMBER = re.compile(
    r"(?:(?:^|(?<=[(\[{,;=<>*/^&]))\+)?(?<![\w.:])(-?)(\d++)"
    r"(?:\.(?:(\d++)|(?=\s?(?:\Z|[,)\]}\\]))))?(?![\w.]|\\overline)"
)
_POINT = re.compile(r"(?<![\w.])\.(?=\d)")
_SCALED = re.compile(rf"(-?\d+(?:\.\d+)?) ?({'|'.join(SCALES)})\b")
_NEGATIVE = re.compile(r"(?:negative|minus) (?=\d)", re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))? ?([ap])\.? ?m\.?", re.IGNORECASE)
_LISTED = re.compile(r",? (?:and|or) ")
_LISTED_BY_COMMAS = re.compile(r",? (?:and|or) |, ")
_LIST_PART = re.compile(
    r"(?=[^\d]*\d)(?>(?:[^a-zA-Z\\<>=]|\\(?:frac|sqrt|pi|pm|cdot|times)(?![a-z])|\b[a-z]\b)+)"
)
_ESCAPED_SPACE = re.compile(r"(?<!\\)\\ ")
_SPACED = re.compile(r"(?<=[^\w\s])\s+|\s+(?=[^\w\s])|(?<=\d)\s+(?=[a-zA-Z](?![a-zA-Z]))")
_PHRASE = re.compile(r"(?!(?!NO)[A-Z]{2}\Z)[^\W\d_]{2,}(?: [^\W\d_]+)*")
"""Words. Two capitals other than NO are a segment or a product."""


@functools.lru_cache(maxsize=4096)  # the paths of a search often give one answer many times
def normalize(answer: str) -> str:
    """The normal form of an answer, which may be empty. Idempotent, and raises nothing.

    An answer of more than 1,000 characters is only stripped: the work of some patterns here grows
    faster than the text.
    """
    text = answer.strip()
    if len(text) > _MAX_LENGTH:
        return text
    for _ in range(_MAX_ROUNDS):
        before, text = text, _normalize_once(text)
        if text == before:
            break
    return text


def _normalize_once(text: str) -> str:
    text = _ESCAPED_SPACE.sub(" ", write_in_latex(text))
    text = _BOLD.sub(r"\1", _unwrap(" ".join(text.split())))
    if not text.endswith(".."):
        text = text.rstrip(".")
    text = text.removeprefix("$").strip().replace("{,}", ",")
    text = _DROPPED.sub("", text)
    text = _strip_text_commands(_UNIT_TEXT.sub(_drop_text_unit, text))
    if option := find_option(text):
        return option
    if clock := _CLOCK.fullmatch(text):
        return f"{int(clock[1])}:{clock[2] or '00'}{clock[3].lower()}m"
    text = _FRAC_NAME.sub(lambda _: r"\frac", text)
    text = _SHORT_FRAC.sub(_brace_fraction, text)
    text = _SHORT_SQRT.sub(r"\\sqrt{\1}", text)
    text = _EXPONENT.sub(r"^{\1}", text)
    text = _INT_FRAC.sub(_slash_fraction, text)
    text = _EMPTY.sub(r"\\emptyset", text)
    for lead in (_NAMED, _LEAD):
        if match := lead.match(text):
            text = text[match.end() :]
    text = _NEGATIVE.sub("-", text, count=1) if _NEGATIVE.match(text) else text
    if _SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    if not _BRACKET.search(text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    text = _write_list(text)
    text = _NUMBER.sub(_trim_number, _POINT.sub("0.", text))
    text = _MIXED.sub(_add_mixed, text)
    text = "0" if text == "-0" else text
    if scaled := _SCALED.match(text):
        value = Fraction(scaled[1]) * SCALES[scaled[2]]
        text = f"{value}{text[scaled.end() :]}" if value.denominator == 1 else text
    text = _drop_unit(text)
    if (number := parse_words(text)) is not None:
        return str(number)
    text = _SPACED.sub("", text)
    return text.lower() if _PHRASE.fullmatch(text) else text.strip()


def _unwrap(text: str) -> str:
    """Drop math delimiters, braces, quotes or Markdown around the whole text."""
    while text.startswith("{") and find_closing_brace(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    for left, right in _WRAPPED:
        inner = text[len(left) : -len(right)]
        long_enough = len(text) > len(left) + len(right)
        if long_enough and text.startswith(left) and text.endswith(right) and left not in inner:
            return inner.strip()
    return text


def _write_list(text: str) -> str:
    r"""Write `2, 300`, `2 or 300` and `x = 2 or x = 300` as `\{2,300\}`, `x = 2 and y = 3` as
    `x = 2,y = 3`, and `(A) and (C)` as `A,C`."""
    if _OPTIONS.fullmatch(text):
        return ",".join(filter(str.isupper, text))
    parts = (_LISTED if _BRACKET.search(text) else _LISTED_BY_COMMAS).split(text)
    names = [_NAMED.match(part) for part in parts]
    named = {name and name[0].split("=")[0].strip() for name in names}
    if len(named) == len(parts) > 1 and None not in named and " or " not in text:
        return ",".join(parts)
    if len(named) == 1:
        parts = [
            part[name.end() :] if name else part for part, name in zip(parts, names, strict=True)
        ]
    if len(parts) == 1 or not all(map(_LIST_PART.fullmatch, parts)):
        return text
    return rf"\{{{','.join(parts)}\}}"


def _strip_text_commands(text: str) -> str:
    while (match := _TEXT_COMMAND.search(text)) is not None:
        end = find_closing_brace(text, match.end())
        if end is None:
            break
        text = f"{text[: match.start()]}{text[match.end() : end]}{text[end + 1 :]}"
    return text


def _brace_fraction(match: re.Match[str]) -> str:
    over, under = (part for part in match.groups() if part is not None)
    return f"\\frac{{{over}}}{{{under}}}"


def _slash_fraction(match: re.Match[str]) -> str:
    sign, over, under = match.groups()
    negative = (sign == "-") != over.startswith("-")
    return f"{'-' if negative else ''}{over.lstrip('+-')}/{under}"


def _add_mixed(match: re.Match[str]) -> str:
    r"""Write a mixed number as one fraction. `2\frac{5}{3}` stays: it may be a product."""
    sign, whole, *parts = match.groups()
    over, under = (int(part) for part in parts if part is not None)
    if not 0 < over < under:
        return match[0]
    return f"{sign}{int(whole) * under + over}/{under}"


def _trim_number(match: re.Match[str]) -> str:
    """Drop the plus sign, leading zeros, and zeros at the end of the decimals."""
    sign, whole, decimals = match.groups()
    whole, decimals = whole.lstrip("0") or "0", (decimals or "").rstrip("0")
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
