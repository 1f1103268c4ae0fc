"""Measure a complete profile: first the device, then each model with its fit."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from flashedge.profiler import ProfileError
from flashedge.profiler.bench import Progress, measure_device
from flashedge.profiler.gpu import find_warnings, read_cards
from flashedge.profiler.profile import ModelProfile
from flashedge.profiler.roofline import MIN_SAMPLES, Sample, fit

PREFILL, DECODE = "prefill", "decode"
DECODE_STEPS = 12
"""Decode steps of one sample, which is their mean."""
QUICK_S, FULL_S = 24.0, 150.0
"""Time limits of a quick and of a whole profile, without the start of the engines."""
DEVICE_SHARE = 0.2
"""Share of the time limit for the device alone; the models divide the rest."""
MODEL_WEIGHTS = {True: 2, False: 1}
"""Parts of that rest, by whether the model decodes, which takes two phases instead of one."""


class ModelProbe(Protocol):
    """One model in its engine.

    Every token is computed: no prompt may be in the KV cache from an earlier one. The samples hold
    what the engine computed.
    """

    name: str
    max_context: int
    """Most tokens of one sequence."""
    max_sequences: int
    """Most sequences of one engine step."""
    max_step_tokens: int
    """Most tokens of one engine step."""
    kv_tokens: int
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
        Returns their mean, or None when the sequences never ran all at once."""
        ...


class GridPoint(NamedTuple):
    phase: str
    sequences: int
    tokens: int
    """Prefilled tokens, or the context of a decode."""


def build_grid(probe: ModelProbe, quick: bool) -> tuple[GridPoint, ...]:
    """The points that fit the engine, the cheapest first."""
    lengths = (16, 64, 256, 768, 3072) if quick else (16, 32, 64, 128, 256, 512, 768, 1536, 3072)
    prefill_batches = (1, 8, 32) if quick else (1, 4, 16, 64)
    decode_batches = (1, 8, 32, 64) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts = (32, 256, 768) if quick else (32, 128, 384, 768, 2048, 8192)
    points = [
        GridPoint(PREFILL, batch, length)
        for batch in prefill_batches
        for length in lengths
        if batch * length <= min(probe.max_step_tokens, probe.kv_tokens // 2)
    ]
    if probe.decodes:
        points += [
            GridPoint(DECODE, batch, context)
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
            what = f"{probe.name}: {point.phase} {point.sequences} x {point.tokens}"
            on_progress(max(share, spent / limit_s), what)
            sample: Sample | None
            if point.phase == PREFILL:
                sample = await probe.prefill(point.sequences, point.tokens)
            else:
                sample = await probe.decode(point.sequences, point.tokens, DECODE_STEPS)
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


async def profile_device(
    kind: str, threads: int, *, quick: bool, on_progress: Progress
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measure the device: (figures of `bench`, warnings about its state afterwards).

    Call it before the engines start, which take time and memory of the device. Raises ProfileError.
    """
    limit_s = DEVICE_SHARE * (QUICK_S if quick else FULL_S)
    figures = await asyncio.to_thread(measure_device, kind, threads, limit_s, on_progress)
    return figures, await asyncio.to_thread(find_device_warnings, kind)


def find_device_warnings(kind: str, nvml: Any = None) -> tuple[str, ...]:
    """What slows the device now, a line each. Raises ProfileError when no card answers."""
    if kind == "cpu":
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)
        if busy <= 1:
            return ()
        return (
            f"the machine was busy: {os.getloadavg()[0]:.1f} programs on {os.cpu_count()} cores",
        )
    import psutil

    return tuple(find_warnings(read_cards(nvml), psutil.virtual_memory().total))


async def profile_models(
    probes: Sequence[ModelProbe], *, quick: bool, on_progress: Progress
) -> tuple[ModelProfile, ...]:
    """Measure each model's steps in its share of the time, and fit them. Raises ProfileError."""
    total_s = (1 - DEVICE_SHARE) * (QUICK_S if quick else FULL_S)
    weights = [MODEL_WEIGHTS[probe.decodes] for probe in probes]
    models, done = [], 0.0
    for probe, weight in zip(probes, weights, strict=True):
        share = weight / sum(weights)

        def report(part: float, what: str, done: float = done, share: float = share) -> None:
            on_progress(done + min(part, 1.0) * share, what)

        limit_s = total_s * share
        samples = await measure_steps(probe, quick=quick, limit_s=limit_s, on_progress=report)
        models.append(fit_model(probe.name, samples))
        done += share
    return tuple(models)


def fit_model(name: str, samples: Sequence[Sample]) -> ModelProfile:
    """Fit each phase that was measured. Raises ProfileError."""
    phases = dict.fromkeys(s.phase for s in samples)
    fits = {phase: fit([s for s in samples if s.phase == phase]) for phase in phases}
    return ModelProfile(name=name, samples=tuple(samples), fits=fits)
