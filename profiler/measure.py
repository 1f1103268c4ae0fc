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
"""Decode steps of one sample, which is their mean. Chosen by hand: one step is noisy, and ten times
as many would leave little room for contexts in a small KV pool."""
DECODE_ROOM = 4 * DECODE_STEPS
"""Tokens kept free after each context, for the steps of a decode and those before its last sequence
starts. Chosen by hand: without them the longest would not fit, and 1,000 fill a small KV pool."""
QUICK_S, FULL_S = 24.0, 150.0
"""Time limits of a quick and of a full profile, without the start of the engines. With that start
they take half a minute and three minutes, which the help of `flashedge profile` names."""
DEVICE_SHARE = 0.2
"""Share of the time limit for the device alone; the models divide the rest. A quick profile then
spends a quarter of a second or more on each figure of the device."""


class ModelProbe(Protocol):
    """One model in its engine.

    Each prompt must be new to the engine, so that the KV cache holds none of its tokens.
    """

    name: str
    max_context: int
    """Most tokens of one sequence."""
    max_sequences: int
    """Most sequences of one engine step."""
    max_step_tokens: int
    """Most tokens of one engine step."""
    kv_tokens: int
    """Tokens that the engine's KV memory holds."""
    decodes: bool
    """False for a model that only scores."""

    def read_clock_s(self) -> float:
        """The time in seconds, by the clock that the samples are measured with."""
        ...

    async def prefill(self, sequences: int, tokens: int) -> Sample:
        """Measure one step that computes about `tokens` tokens for each of `sequences` prompts."""
        ...

    async def decode(self, sequences: int, context: int, steps: int) -> Sample | None:
        """Measure `steps` steps, each of one token for each sequence after about `context` tokens.

        Returns the mean of the steps, or None when the sequences never ran all at once.
        """
        ...


class GridPoint(NamedTuple):
    """A kind of step that is measured."""

    phase: str
    sequences: int
    tokens: int
    """Prefilled tokens, or the context of a decode."""


def build_grid(probe: ModelProbe, quick: bool) -> tuple[GridPoint, ...]:
    """The points that fit the engine, the cheapest first. Each takes at most half of the KV memory,
    so that the engine preempts no sequence."""
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
            if batch * (context + DECODE_ROOM) <= probe.kv_tokens // 2
        ]
    fitting = (
        p
        for p in points
        if p.tokens + DECODE_ROOM <= probe.max_context and p.sequences <= probe.max_sequences
    )
    return tuple(sorted(fitting, key=lambda p: p.sequences * p.tokens))


async def measure_steps(
    probe: ModelProbe, *, quick: bool, limit_s: float, on_progress: Progress
) -> tuple[Sample, ...]:
    """Measure the points of the grid in 3 rounds when `quick`, else in 7, and return the median
    sample of each point.

    No step begins after `limit_s` seconds, so the most expensive points may be left out. Raises
    ProfileError when a phase has too few samples for a fit.
    """
    points, rounds = build_grid(probe, quick), 3 if quick else 7
    began = probe.read_clock_s()
    await probe.prefill(1, 16)  # an engine's first request takes longer than others
    found: dict[GridPoint, list[Sample]] = defaultdict(list)
    for turn in range(rounds):
        for index, point in enumerate(points):
            spent = probe.read_clock_s() - began
            if spent > limit_s:
                break
            share = (turn * len(points) + index) / (rounds * len(points))
            what = f"{probe.name}: {point.phase} {point.sequences} x {point.tokens}"
            on_progress(max(share, spent / limit_s), what)
            if point.phase == DECODE:
                sample = await probe.decode(point.sequences, point.tokens, DECODE_STEPS)
            else:
                sample = await probe.prefill(point.sequences, point.tokens)
            if sample is not None:
                found[point].append(sample)
    samples = tuple(
        sorted(several, key=lambda s: s.seconds)[len(several) // 2] for several in found.values()
    )
    for phase in (PREFILL, DECODE) if probe.decodes else (PREFILL,):
        count = sum(s.phase == phase for s in samples)
        if count < MIN_SAMPLES:
            more = ", or allow more time: flashedge profile, without --quick" if quick else ""
            raise ProfileError(
                f"{probe.name}: only {count} {phase} steps could be measured in {limit_s:.0f} s",
                hint=f"stop other programs{more}",
            )
    return samples


async def profile_device(
    kind: str, threads: int, *, quick: bool, on_progress: Progress
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measure the device. Returns (figures of `bench`, warnings about its state afterwards).

    kind: "cpu" or "cuda". Call it before the engines use the device. Raises ProfileError.
    """
    limit_s = DEVICE_SHARE * (QUICK_S if quick else FULL_S)
    figures = await asyncio.to_thread(measure_device, kind, threads, limit_s, on_progress)
    return figures, await asyncio.to_thread(find_device_warnings, kind)


def find_device_warnings(kind: str, nvml: Any = None) -> tuple[str, ...]:
    """A line for each thing that slows the device now. Raises ProfileError when no card answers."""
    if kind == "cpu":
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        text = f"the machine was busy: {load:.1f} programs on {cores} cores"
        return (text,) if load > cores else ()
    import psutil

    return tuple(find_warnings(read_cards(nvml), psutil.virtual_memory().total))


async def profile_models(
    probes: Sequence[ModelProbe], *, quick: bool, on_progress: Progress
) -> tuple[ModelProfile, ...]:
    """Measure each model's steps in its share of the time, and fit them. Raises ProfileError."""
    total_s = (1 - DEVICE_SHARE) * (QUICK_S if quick else FULL_S)
    weights = [2 if probe.decodes else 1 for probe in probes]  # decoding is a second phase
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
