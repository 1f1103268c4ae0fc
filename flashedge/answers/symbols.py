"""Writes in LaTeX the symbols that answers have as single characters, `½`, `x²`, `√2`, `3×10⁵`, or
as names without a backslash, `2pi`, `sin x`, `sqrt(2)`."""

from __future__ import annotations

import re
import unicodedata

from flashedge.answers.units import drop_unit

_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−﹣－", "-"),
        **{"＋": "+", "⁄": "/", "∕": "/", "×": "\\times ", "⋅": "\\cdot ", "·": "\\cdot "},
        **{"π": "\\pi ", "∞": "\\infty ", "±": "\\pm ", "≈": "\\approx ", "θ": "\\theta "},
        **{"≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "∪": "\\cup ", "∩": "\\cap "},
        **{"…": "...", "÷": "/", "∅": "\\emptyset "},
    }
)
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_FRACTION = re.compile(r"[¼-¾⅐-⅞]")
_ROOT = re.compile(r"√\s?(\d+|[a-z])")
_DASH = re.compile(r"(?:^|(?<=[(\[{,=]))\s*–\s*(?=\d)")
_SQUARE_ROOT = re.compile(
    r"(\^\s?|(?<![a-zA-Z\\]))(?:sqrt\s?(?=[{\d])|\\?sqrt\s?\(((?:[^()]|\([^()]*+\))*+)\))"
)
_NAME = re.compile(
    r"(?<![a-zA-Z\\_])(?:(pi|theta|alpha|beta|gamma|phi|omega|infinity)(?![a-zA-Z])"
    r"|((?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp)"
    r"(?=\s?(?:[\\({\d^_]|[a-zA-Z](?![a-zA-Z]))))"
)
"""Constants, and functions with an argument: `30 sec` is a time."""
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{3,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
_TILDE = re.compile(r"(?:^|(?<=[(∧∨&|→]))\s*~\s*(?=[a-zA-Z(])")


def write_in_latex(text: str) -> str:
    """The text without such symbols.

    A dash is a minus sign where a number can begin. A tilde is a blank, but for one before a name,
    which negates it.
    """
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
    """Only in a formula, which has no words but a unit."""
    named = _NAME.sub(lambda m: "\\infty" if m[1] == "infinity" else f"\\{m[0]}", text)
    is_formula = named != text and not _WORD.search(_ENVIRONMENT.sub(" ", drop_unit(named)))
    return named if is_formula else text


def _write_fraction(match: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return f"\\frac{{{over}}}{{{under}}}"
