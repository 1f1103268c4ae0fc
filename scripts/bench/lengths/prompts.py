"""Many outputs' lengths of each prompt: of the trace in the package, or sampled from an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.benchmark.lengths import load_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The outputs to one prompt."""

    outputs: tuple[tuple[int, ...], ...]
    """(num_outputs,) of the lengths that each one gives, in tokens: one, or those of its steps."""

    is_cut: tuple[bool, ...]
    """(num_outputs,) whether a limit cut it, so that its last length is a lower bound."""

    @property
    def lengths(self) -> list[int]:
        return [tokens for output in self.outputs for tokens in output]

    @property
    def is_censored(self) -> list[bool]:
        """Of each of `lengths`."""
        return [
            is_cut and index == len(output) - 1
            for output, is_cut in zip(self.outputs, self.is_cut, strict=True)
            for index in range(len(output))
        ]

    def split(self) -> tuple[Prompt, Prompt]:
        """Every second output, and the others. Outputs were drawn independently."""
        first, second = (
            Prompt(outputs=self.outputs[start::2], is_cut=self.is_cut[start::2]) for start in (0, 1)
        )
        return first, second


def read_trace_totals() -> list[Prompt]:
    """Tokens of each of the eight samples of the trace's 100 problems."""
    return [_build(tuple((sum(steps),) for steps in outputs)) for outputs in _read_trace()]


def read_trace_steps() -> list[Prompt]:
    """Tokens of every step of the eight samples, pooled for each problem."""
    return [_build(outputs) for outputs in _read_trace()]


def read_sampled(path: Path) -> list[Prompt]:
    """Read what `sample_lengths` wrote."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Prompt(outputs=tuple((tokens,) for tokens in row["lengths"]), is_cut=tuple(row["is_cut"]))
        for row in rows
    ]


def _read_trace() -> list[tuple[tuple[int, ...], ...]]:
    return [row.step_tokens for row in load_trace("math").rows]


def _build(outputs: Sequence[tuple[int, ...]]) -> Prompt:
    return Prompt(outputs=tuple(outputs), is_cut=(False,) * len(outputs))
