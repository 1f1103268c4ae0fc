"""How much a program still has to generate.

A search draws many outputs of one prompt. Their sum is less uncertain than one of them: the excess
of its tail grows with the square root of their number. That is exact for independent outputs with a
finite variance, which the limit of tokens gives them, and many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

from flashedge.scheduling.lengths.distribution import LengthDistribution
from flashedge.scheduling.lengths.tail import TailFigures, compute_figures
from flashedge.scheduling.programs.program import Program

ROUNDED_TOKENS = 16
"""Tokens drawn are rounded down to a multiple of it, since each number's figures are kept."""
LEAST_LEFT = 0.02
"""Share of a program's work that counts as left until it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Tokens that are left to generate."""

    expected: float

    tail: float
    """Their mean in the worst tenth of the cases (CVaR)."""

    def __add__(self, other: Work) -> Work:
        """Both. Their tails are taken to come together."""
        return Work(expected=self.expected + other.expected, tail=self.tail + other.tail)


def estimate_work(program: Program) -> Work:
    """Estimate the tokens that a program still generates. Unpredicted outputs count in full.

    What is left never falls to nothing: a program that has drawn more than was expected of it is
    nearly done as far as anybody knows, but not over.
    """
    outputs, most = max(1, program.outputs), program.max_tokens
    if program.lengths is None:
        return _leave(program, Work(expected=float(outputs * most), tail=float(outputs * most)))
    if outputs == 1:
        drawn = min(program.drawn_tokens // ROUNDED_TOKENS * ROUNDED_TOKENS, most - 1)
        one = find_figures(program.lengths, most, drawn)
        return Work(
            expected=max(1.0, one.expected - drawn),
            tail=max(1.0, one.conditional_value_at_risk - drawn),
        )
    one = find_figures(program.lengths, most, 0)
    expected = outputs * one.expected
    excess = sqrt(outputs) * (one.conditional_value_at_risk - one.expected)
    return _leave(program, Work(expected=expected, tail=expected + excess))


def _leave(program: Program, whole: Work) -> Work:
    """The part of the whole work that is left."""
    done = max(program.progress, program.drawn_tokens / whole.expected)
    left = max(LEAST_LEFT, 1.0 - done)
    return Work(expected=whole.expected * left, tail=whole.tail * left)


@lru_cache(maxsize=1 << 14)
def find_figures(lengths: LengthDistribution, limit: int, drawn: int) -> TailFigures:
    """The figures of one output's length. Kept, since programs are scored again and again.

    drawn: tokens that it has already.
    """
    return compute_figures(lengths, limit, drawn=drawn)
