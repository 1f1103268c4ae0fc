"""Compares the values of formulas exactly, in the worker of `mathematics` only.

math-verify compares floats: values that underflow, or agree in 15 digits, are equal to it. Here
values stay exact. Their digits show that two values differ, or that one is the other one rounded.
"""

from functools import partial
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import grader, parser
from sympy.core.function import AppliedUndef

from flashedge.answers.equality import MAX_ERROR, MAX_RELATIVE_ERROR

_APART = sympy.Rational(1, 10**20)
"""A larger relative difference is real: values have 30 digits, of which rounding may spoil ten."""


def use_exact_values() -> None:
    """Replace math-verify's comparisons, also within sets and tuples. `a` then differs from `A`."""
    grader.sympy_numeric_eq = lambda a, b, *_: are_equal_values(a, b)
    config = ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = partial(parser.latex2sympy, conversion_config=config)
    grader.sympy_symbolic_eq = lambda a, b: False  # `are_equal_values` has tried that


def stands_for_value(formula: Any) -> bool:
    """Whether a formula may be compared with a value: an equation may if it names the value (`x=5`,
    `f(2)=5`) or computes it (`2+3=5`)."""
    if not isinstance(formula, sympy.Eq):
        return True
    return isinstance(formula.lhs, sympy.Symbol | AppliedUndef) or not formula.lhs.free_symbols


def are_equal_values(a: Any, b: Any) -> bool:
    """Whether two formulas or matrices have one value. A decimal also equals a value that it rounds
    (`equality.MAX_ERROR`), unless that is an integer. In doubt they differ."""
    a, b = a.doit(), b.doit()
    if isinstance(a, sympy.MatrixBase) or isinstance(b, sympy.MatrixBase):
        if getattr(a, "shape", None) != getattr(b, "shape", None):
            return False
        return all(are_equal_values(x, y) for x, y in zip(a.flat(), b.flat(), strict=True))
    may_round = isinstance(a, sympy.Float) != isinstance(b, sympy.Float)
    may_round = may_round and not isinstance(a, sympy.Integer) and not isinstance(b, sympy.Integer)
    positive = {s: sympy.Dummy(positive=True) for s in _list_positive(a) & _list_positive(b)}
    a, b = (
        value.xreplace({x: sympy.Rational(str(x)) for x in value.atoms(sympy.Float)}).subs(positive)
        for value in (a, b)
    )
    difference = a - b
    if difference.is_Rational and not may_round:
        return bool(difference == 0)
    symbols = sorted(difference.free_symbols, key=lambda symbol: symbol.sort_key())
    # Any point would do: these positive fractions are unlikely to be roots of the difference.
    point = {symbol: sympy.Rational(sympy.prime(5 + i), 7) for i, symbol in enumerate(symbols)}
    size = max(abs(value.subs(point).evalf(30)) for value in (a, b))
    gap = abs(difference.subs(point).evalf(30))
    if gap.is_comparable and gap > _APART * size:
        return may_round and not point and bool(gap <= min(MAX_ERROR, MAX_RELATIVE_ERROR * size))
    return bool(sympy.expand(difference) == 0) or difference.equals(0) is True


def _list_positive(value: Any) -> set[Any]:
    r"""The symbols that are positive wherever the value is real: n in `\sqrt{n}`, `\sqrt{1/n}`."""
    roots = (
        p.base.as_base_exp() for p in value.atoms(sympy.Pow) if p.exp.is_Rational and p.exp.q == 2
    )
    return {base for base, exponent in roots if base.is_Symbol and exponent.is_odd}
