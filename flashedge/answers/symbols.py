"""Writes the symbols that answers have as single characters in LaTeX: `½`, `x²`, `√2`, `3×10⁵`."""

from __future__ import annotations

import re
import unicodedata

_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−﹣－", "-"),
        **{"＋": "+", "⁄": "/", "∕": "/", "×": "\\times ", "⋅": "\\cdot ", "·": "\\cdot "},
        **{"π": "\\pi ", "∞": "\\infty ", "±": "\\pm ", "≈": "\\approx ", "θ": "\\theta "},
        **{"≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "∪": "\\cup ", "∩": "\\cap "},
        **{"…": "...", "÷": "/"},
    }
)
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_FRACTION = re.compile(r"[¼-¾⅐-⅞]")
_ROOT = re.compile(r"√\s?(\d+|[a-z])")
_DASH = re.compile(r"(?:^|(?<=[(\[{,=]))\s*–\s*(?=\d)")
_TILDE = re.compile(r"(?:^|(?<=[(∧∨&|→]))\s*~\s*(?=[a-zA-Z(])")


def write_in_latex(text: str) -> str:
    """The text without such symbols. A dash is a minus sign where a number can begin; a tilde is a
    blank, but for one before a name, which negates it."""
    if not text.isascii():
        text = _FRACTION.sub(_write_fraction, text)
        text = _RAISED_RUN.sub(lambda m: f"^{{{''.join(map(_RAISED.__getitem__, m[0]))}}}", text)
        text = _LOWERED_RUN.sub(lambda m: f"_{{{''.join(map(_LOWERED.__getitem__, m[0]))}}}", text)
        text = _DASH.sub("-", _ROOT.sub(r"\\sqrt{\1}", text.translate(_SYMBOLS)))
    return _TILDE.sub(r"\\neg ", text).replace("~", " ")


def _write_fraction(match: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return f"\\frac{{{over}}}{{{under}}}"
