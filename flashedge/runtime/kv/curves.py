"""The cost curves of this device: measured if there is a profile, else a roofline.

Grid points that were too large to measure are predicted by the profile's fitted model.
"""

from collections import defaultdict
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
from flashedge.profiler.gpu import find_sheet
from flashedge.profiler.measure import DECODE, PREFILL
from flashedge.profiler.profile import ModelProfile, Profile
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
"""Bandwidth of the link to host memory that is assumed without a profile. It is low, since an
assumption must not make offload look cheap."""
ASSUMED_CPU = Device(
    name="a CPU core", flops=2e11, bandwidth=2e10, memory_bytes=1 << 33, overhead_s=0.008
)
"""Stands in for a CPU without a profile. Chosen by hand, half as fast as a server's core of 2023 is
with a 1.5B in bfloat16 (70 ms a step for one sequence, 130 ms for 16), which gains up to 16
sequences. With a tenth of `overhead_s`, many small decode steps would look as cheap as a few large
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """How long steps of each engine take, and how fast KV moves."""

    generator: CostCurve
    verifier: CostCurve
    link_bytes_per_s: float
    """Bandwidth of the link to host memory, in one direction."""
    source: str
    """Where the curves come from, in words, for records of runs."""


def load_curves(pair: Pair, config: Config) -> Curves:
    """Build curves from the pair's profile if it was made on this device with these models, else
    rooflines. Raises ConfigError, EngineError, CheckpointError."""
    shapes = load_shape(pair.generator, config), load_shape(pair.verifier, config)
    found = find_profile(pair, config)
    if found.profile is not None:
        return build_curves(found.profile, shapes)
    devices = [(ASSUMED_CPU, "an assumed CPU core")] * 2
    if detect_device_kind() != "cpu":
        devices = [_find_device(cards) for cards in find_layout(config).each]
    names = " and ".join(dict.fromkeys(name for _, name in devices))
    return Curves(
        generator=RooflineCurve(device=devices[0][0], shape=shapes[0]),
        verifier=RooflineCurve(device=devices[1][0], shape=shapes[1]),
        link_bytes_per_s=LINK_BYTES_PER_S,
        source=f"roofline of {names} (profile: {found.why})",
    )


def build_curves(profile: Profile, shapes: tuple[ModelShape, ModelShape]) -> Curves:
    """Build measured curves. Raises ConfigError if the profile lacks one of the two models."""
    models = {model.name: model for model in profile.models}
    if not {"generator", "verifier"} <= set(models):
        raise ConfigError("the profile does not cover both models", hint="run `flashedge profile`")
    # KV is assumed to move at the speed of the link's slower direction, to pinned memory. Without a
    # card it is copied within RAM. A copy reads and writes, so it gets half of the bandwidth.
    ways = [row["bytes_per_s"] for row in profile.device["transfers"] if row["pinned"]]
    return Curves(
        generator=build_measured_curve(models["generator"], shapes[0]),
        verifier=build_measured_curve(models["verifier"], shapes[1]),
        link_bytes_per_s=float(min(ways)) if ways else profile.bytes_per_s / 2,
        source=f"profile of {profile.made_at}{' (quick)' if profile.quick else ''}",
    )


def build_measured_curve(model: ModelProfile, shape: ModelShape) -> MeasuredCurve:
    prefill: dict[float, list[float]] = defaultdict(list)
    decode_s: dict[tuple[int, float], float] = {}
    for sample in model.samples:
        if sample.phase == PREFILL:
            prefill[sample.sequences * sample.new].append(sample.seconds)
        elif sample.phase == DECODE:
            decode_s[sample.sequences, sample.context] = sample.seconds
    tokens = sorted(prefill)
    batches = sorted({float(batch) for batch, _ in decode_s}) or [1.0]
    contexts = sorted({float(context) for _, context in decode_s}) or [0.0]
    return interpolate_measurements(
        batches=batches,
        contexts=contexts,
        decode=[
            [decode_s.get((int(b), c)) or _estimate_decode(model, shape, b, c) for c in contexts]
            for b in batches
        ],
        tokens=tokens,
        prefill=[median(prefill[count]) for count in tokens],
    )


def _estimate_decode(model: ModelProfile, shape: ModelShape, batch: float, context: float) -> float:
    """Predict the seconds of a decode step. A verifier has only a prefill fit."""
    fit = model.fits.get(DECODE) or model.fits[PREFILL]
    moved = shape.weights_bytes + batch * shape.kv_bytes_per_token * (context + 1)
    return fit.predict_s(sequences=batch, flops=batch * count_flops(shape, context, 1), bytes=moved)


def _find_device(cards: EngineCards) -> tuple[Device, str]:
    """Describe an engine's cards as one device with the sum of their peaks, and name it in words.
    The time of their all-reduce is not counted. Without a data sheet the device is an RTX 4090."""
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
