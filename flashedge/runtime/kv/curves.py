"""The cost curves of this device: measured if there is a profile, else a roofline.

The profiler measures steps on a grid of batches and contexts, and leaves out points that do not fit
the engine. A missing point is taken from the profile's fit, so that the tables of a measured curve
are complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flashedge.config import Config
from flashedge.engine.layout import EngineCards, find_layout
from flashedge.engine.platform import detect_device_kind
from flashedge.engine.profiles import find_profile
from flashedge.errors import ConfigError
from flashedge.models.checkpoint_shape import load_shape
from flashedge.models.shape import ModelShape
from flashedge.models.specs import Pair
from flashedge.profiler.datasheet import find_sheet
from flashedge.profiler.measure import DECODE, PREFILL
from flashedge.profiler.profile import ModelProfile, Profile
from flashedge.profiler.roofline import Sample
from flashedge.scheduling.costs import (
    RTX_4090,
    CostCurve,
    Device,
    MeasuredCurve,
    RooflineCurve,
    count_flops,
    interpolate_measurements,
)

LINK_BYTES_PER_S = 1e9
"""Assumed speed of the way to host memory, until it is measured. A slow guess."""
ASSUMED_CPU = Device(
    name="a CPU core", flops=5e10, bandwidth=1e10, memory_bytes=1 << 33, overhead_s=0.008
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The cost curves of both engines on this device."""

    generator: CostCurve
    verifier: CostCurve
    link_bytes_per_s: float
    """Speed one way to host memory."""
    source: str
    """Where the curves come from, in words, for the run's record."""


def load_curves(pair: Pair, config: Config) -> Curves:
    """Load the curves of the pair's profile, if it was made on this device with these models.

    Else build rooflines. Raises CheckpointError.
    """
    shapes = load_shape(pair.generator, config), load_shape(pair.verifier, config)
    found = find_profile(pair, config)
    if found.profile is None:
        devices, name = _find_devices(config)
        curves = [
            RooflineCurve(device=device, shape=shape)
            for device, shape in zip(devices, shapes, strict=True)
        ]
        return Curves(
            generator=curves[0],
            verifier=curves[1],
            link_bytes_per_s=LINK_BYTES_PER_S,
            source=f"roofline of {name} (profile: {found.why})",
        )
    return build_curves(found.profile, shapes)


def build_curves(profile: Profile, shapes: tuple[ModelShape, ModelShape]) -> Curves:
    """Build the curves of a profile. Raises ConfigError if it lacks one of the two models."""
    models = {model.name: model for model in profile.models}
    if not {"generator", "verifier"} <= set(models):
        raise ConfigError("the profile does not cover both models", hint="run `flashedge profile`")
    return Curves(
        generator=build_measured_curve(models["generator"], shapes[0]),
        verifier=build_measured_curve(models["verifier"], shapes[1]),
        link_bytes_per_s=_find_link_speed(profile),
        source=f"profile of {profile.made_at}{' (quick)' if profile.quick else ''}",
    )


def build_measured_curve(model: ModelProfile, shape: ModelShape) -> MeasuredCurve:
    """Turn a model's samples into complete tables."""
    prefill: dict[float, list[float]] = defaultdict(list)
    for sample in _select_samples(model, PREFILL):
        prefill[sample.sequences * sample.new].append(sample.seconds)
    tokens = sorted(prefill)
    at = {(s.sequences, s.context): s.seconds for s in _select_samples(model, DECODE)}
    batches = sorted({float(batch) for batch, _ in at}) or [1.0]
    contexts = sorted({float(context) for _, context in at}) or [0.0]
    return interpolate_measurements(
        batches=batches,
        contexts=contexts,
        decode=[
            [at.get((int(b), c)) or _estimate_decode(model, shape, b, c) for c in contexts]
            for b in batches
        ],
        tokens=tokens,
        prefill=[median(prefill[count]) for count in tokens],
    )


def _select_samples(model: ModelProfile, phase: str) -> Sequence[Sample]:
    return [sample for sample in model.samples if sample.phase == phase]


def _estimate_decode(model: ModelProfile, shape: ModelShape, batch: float, context: float) -> float:
    """Seconds of a decode step that was not measured.

    The verifier never decodes; its prefill fit is used.
    """
    fit = model.fits.get(DECODE) or model.fits[PREFILL]
    moved = shape.weights_bytes + batch * shape.kv_bytes_per_token * (context + 1)
    return fit.seconds(sequences=batch, flops=batch * count_flops(shape, context, 1), bytes=moved)


def _find_link_speed(profile: Profile) -> float:
    """Speed of the slower direction, to memory that is not pinned. On CPU, of a memory copy, which
    reads and writes."""
    ways = [row["bytes_per_s"] for row in profile.device["transfers"] if not row["pinned"]]
    return float(min(ways)) if ways else profile.bytes_per_s / 2


def _find_devices(config: Config) -> tuple[tuple[Device, Device], str]:
    """Find what the rooflines of both engines need of their devices, and a name for the record."""
    if detect_device_kind() == "cpu":
        return (ASSUMED_CPU, ASSUMED_CPU), "an assumed CPU core"
    layout = find_layout(config)
    found = [_find_device(cards) for cards in layout.each]
    names = list(dict.fromkeys(name for _, name in found))
    return (found[0][0], found[1][0]), " and ".join(names)


def _find_device(cards: EngineCards) -> tuple[Device, str]:
    """The cards of an engine as one device. What several cards lose by exchanging results is not
    counted."""
    card, count = cards.cards[0], len(cards.cards)
    sheet = find_sheet(card.name)
    if sheet is None:
        return RTX_4090, f"an RTX 4090 (no data sheet of {card.name})"
    device = Device(
        name=card.name,
        flops=count * sheet.tflops * 1e12,
        bandwidth=count * sheet.gb_per_s * 1e9,
        memory_bytes=count * card.memory_bytes,
    )
    named = card.name if count == 1 else f"{count} x {card.name}"
    return device, f"{named} by its data sheet"
