"""Measure a complete profile: first the device, then each model with its fit."""

from __future__ import annotations

import asyncio
import datetime
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.profiler.bench import measure_device
from flashedge.profiler.errors import ProfileError
from flashedge.profiler.gpu import find_warnings, read_cards
from flashedge.profiler.probes import ModelProbe, Progress, measure_steps
from flashedge.profiler.profile import ModelProfile, Profile
from flashedge.profiler.roofline import Sample, fit

QUICK_S, FULL_S = 24.0, 150.0
DEVICE_SHARE = 0.2  # of the time
MODEL_WEIGHTS = {True: 2, False: 1}  # of the rest, by whether the model decodes


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
    """Measure and fit every model. Raises ProfileError."""
    total_s = (1 - DEVICE_SHARE) * (QUICK_S if quick else FULL_S)
    weights = [MODEL_WEIGHTS[probe.decodes] for probe in probes]
    models, done = [], 0.0
    for probe, weight in zip(probes, weights, strict=True):
        share = weight / sum(weights)

        def report(part: float, what: str, done: float = done, share: float = share) -> None:
            on_progress(done + min(part, 1.0) * share, what)

        samples = await measure_steps(
            probe, quick=quick, limit_s=total_s * share, on_progress=report
        )
        models.append(fit_model(probe.name, samples))
        done += share
    return tuple(models)


def fit_model(name: str, samples: Sequence[Sample]) -> ModelProfile:
    """Fit each phase that was measured. Raises ProfileError."""
    phases = dict.fromkeys(s.phase for s in samples)
    fits = {phase: fit([s for s in samples if s.phase == phase]) for phase in phases}
    return ModelProfile(name=name, samples=tuple(samples), fits=fits)


def build_profile(
    fingerprint: Mapping[str, str],
    kind: str,
    device: Mapping[str, Any],
    models: Sequence[ModelProfile],
    *,
    quick: bool,
    began: float,
    warnings: Sequence[str],
) -> Profile:
    """Build the profile. `began` is `time.monotonic()` at its start."""
    if not models:
        raise ProfileError("no model was measured")
    return Profile(
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        quick=quick,
        wall_s=round(time.monotonic() - began, 1),
        load=round(os.getloadavg()[0], 2),
        fingerprint=dict(fingerprint),
        kind=kind,
        device=dict(device),
        models=tuple(models),
        warnings=tuple(warnings),
    )
