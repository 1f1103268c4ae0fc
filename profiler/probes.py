"""Measure the engine steps of a model: rounds over a grid of points within a time limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flashedge.profiler.errors import ProfileError
from flashedge.profiler.roofline import MIN_SAMPLES, Sample

PREFILL, DECODE = "prefill", "decode"
DECODE_STEPS = 12
Progress = Callable[[float, str], None]


class ModelProbe(Protocol):
    """One model in its engine.

    Both measurements compute every token: no prompt may be in the KV cache from an earlier one.
    Their samples hold what the engine computed.
    """

    name: str
    max_context: int
    """Most tokens of one sequence."""

    max_sequences: int
    """Most sequences of one engine step."""

    max_step_tokens: int
    """Most tokens of one engine step."""

    kv_tokens: int
    """Tokens that the KV cache holds."""

    decodes: bool
    """False for a model that only scores."""

    def now_s(self) -> float:
        """The clock of the samples."""
        ...

    async def prefill(self, sequences: int, tokens: int) -> Sample:
        """Measure one step that computes about `tokens` tokens of each of `sequences` sequences."""
        ...

    async def decode(self, sequences: int, context: int, steps: int) -> Sample | None:
        """Measure `steps` steps, with one token of each sequence after about `context` tokens.

        Returns their mean, or None when the sequences never ran all at once.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPoint:
    """One point to measure."""

    phase: str
    sequences: int
    tokens: int
    """Prefilled tokens, or the context of a decode."""

    @property
    def label(self) -> str:
        return f"{self.phase} {self.sequences} x {self.tokens}"


def build_grid(probe: ModelProbe, quick: bool) -> tuple[GridPoint, ...]:
    """The points that fit the engine, the cheapest first."""
    lengths = (16, 64, 256, 768, 3072) if quick else (16, 32, 64, 128, 256, 512, 768, 1536, 3072)
    prefill_batches = (1, 8, 32) if quick else (1, 4, 16, 64)
    decode_batches = (1, 8, 32, 64) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts = (32, 256, 768) if quick else (32, 128, 384, 768, 2048, 8192)
    points = [
        GridPoint(phase=PREFILL, sequences=batch, tokens=length)
        for batch in prefill_batches
        for length in lengths
        if batch * length <= min(probe.max_step_tokens, probe.kv_tokens // 2)
    ]
    if probe.decodes:
        points += [
            GridPoint(phase=DECODE, sequences=batch, tokens=context)
            for batch in decode_batches
            for context in contexts
            if batch * (context + 4 * DECODE_STEPS) <= probe.kv_tokens // 2
        ]
    fitting = (
        p
        for p in points
        if p.tokens + 4 * DECODE_STEPS <= probe.max_context and p.sequences <= probe.max_sequences
    )
    return tuple(sorted(fitting, key=lambda p: p.sequences * p.tokens))


async def measure_steps(
    probe: ModelProbe, *, quick: bool, limit_s: float, on_progress: Progress
) -> tuple[Sample, ...]:
    """Measure every point of the grid and return its median sample.

    Runs 3 rounds when `quick`, else 7. When `limit_s` is over, the most expensive points are left
    out. Raises ProfileError when a phase has too few samples for a fit.
    """
    points, rounds = build_grid(probe, quick), 3 if quick else 7
    began = probe.now_s()
    await probe.prefill(1, 16)  # the work that an engine does at its first request only
    found: dict[GridPoint, list[Sample]] = defaultdict(list)
    for turn in range(rounds):
        for index, point in enumerate(points):
            spent = probe.now_s() - began
            if spent > limit_s:
                break
            share = (turn * len(points) + index) / (rounds * len(points))
            on_progress(max(share, spent / limit_s), f"{probe.name}: {point.label}")
            sample = await _measure(probe, point)
            if sample is not None:
                found[point].append(sample)
    samples = tuple(
        sorted(several, key=lambda s: s.seconds)[len(several) // 2] for several in found.values()
    )
    for phase in (PREFILL, DECODE) if probe.decodes else (PREFILL,):
        count = sum(s.phase == phase for s in samples)
        if count < MIN_SAMPLES:
            raise ProfileError(
                f"{probe.name}: only {count} {phase} steps could be measured in {limit_s:.0f} s",
                hint="stop other programs, or allow more time: flashedge profile, without --quick",
            )
    return samples


async def _measure(probe: ModelProbe, point: GridPoint) -> Sample | None:
    if point.phase == PREFILL:
        return await probe.prefill(point.sequences, point.tokens)
    return await probe.decode(point.sequences, point.tokens, DECODE_STEPS)
