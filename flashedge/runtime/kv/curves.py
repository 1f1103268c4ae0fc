"""What the KV split knows of this device: measured curves if there is a profile, else a roofline.

The profiler measures steps at points of a grid that leaves out what does not fit the engine; where
a point is missing its fit stands in, so that `scheduling.cost_curves.measured` gets whole tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flashedge.config import Config
from flashedge.engine.platform import device_kind
from flashedge.errors import ConfigError, EngineError
from flashedge.models.checkpoint_shape import load_shape
from flashedge.models.shape import ModelShape
from flashedge.models.specs import Pair
from flashedge.profiler.datasheet import sheet_of
from flashedge.profiler.probes import DECODE, PREFILL
from flashedge.profiler.profile import Model, Profile
from flashedge.profiler.roofline import Sample
from flashedge.runtime.profiles import find_profile
from flashedge.scheduling.costs.curves import CostCurve, MeasuredCurve, RooflineCurve, measured
from flashedge.scheduling.costs.roofline import RTX_4090, Device, work_flops

LINK_BYTES_PER_S = 1e9  # one way to host memory, before anything was moved: a slow guess
ASSUMED_CPU = Device(
    name="a CPU core", flops=5e10, bandwidth=1e10, memory_bytes=1 << 33, overhead_s=0.008
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """source: in words, for the run's record; link_bytes_per_s: one way to host memory."""

    generator: CostCurve
    verifier: CostCurve
    link_bytes_per_s: float
    source: str


def load_curves(pair: Pair, config: Config) -> Curves:
    """By the pair's profile if it was made on what is here now. Raises CheckpointError."""
    shapes = load_shape(pair.generator, config), load_shape(pair.verifier, config)
    found = find_profile(pair, config)
    if found.profile is None:
        device, named = _device()
        curves = [RooflineCurve(device=device, shape=shape) for shape in shapes]
        return Curves(
            generator=curves[0],
            verifier=curves[1],
            link_bytes_per_s=LINK_BYTES_PER_S,
            source=f"roofline of {named} (profile: {found.why})",
        )
    return build_curves(found.profile, shapes)


def build_curves(profile: Profile, shapes: tuple[ModelShape, ModelShape]) -> Curves:
    """Raises ConfigError for a profile that lacks one of the two models."""
    models = {model.name: model for model in profile.models}
    if not {"generator", "verifier"} <= set(models):
        raise ConfigError("the profile has no curves of both models", hint="flashedge profile")
    return Curves(
        generator=build_measured_curve(models["generator"], shapes[0]),
        verifier=build_measured_curve(models["verifier"], shapes[1]),
        link_bytes_per_s=_link(profile),
        source=f"profile of {profile.made_at}{' (quick)' if profile.quick else ''}",
    )


def build_measured_curve(model: Model, shape: ModelShape) -> MeasuredCurve:
    """A model's samples as whole tables; a model that does not decode costs nothing there."""
    prefill: dict[float, list[float]] = defaultdict(list)
    for sample in _of(model, PREFILL):
        prefill[sample.sequences * sample.new].append(sample.seconds)
    tokens = sorted(prefill)
    at = {(s.sequences, s.context): s.seconds for s in _of(model, DECODE)}
    batches = sorted({float(batch) for batch, _ in at}) or [1.0]
    contexts = sorted({float(context) for _, context in at}) or [0.0]
    return measured(
        batches=batches,
        contexts=contexts,
        decode=[
            [at.get((int(b), c)) or _fitted(model, shape, b, c) for c in contexts] for b in batches
        ],
        tokens=tokens,
        prefill=[median(prefill[count]) for count in tokens],
    )


def _of(model: Model, phase: str) -> Sequence[Sample]:
    return [sample for sample in model.samples if sample.phase == phase]


def _fitted(model: Model, shape: ModelShape, batch: float, context: float) -> float:
    """Seconds of a decode step that was not measured; of any, where the model decodes nothing."""
    fit = model.fits.get(DECODE) or model.fits[PREFILL]
    moved = shape.weights_bytes + batch * shape.kv_bytes_per_token * (context + 1)
    return fit.seconds(sequences=batch, flops=batch * work_flops(shape, context, 1), bytes=moved)


def _link(profile: Profile) -> float:
    """The slower way, to memory that is not pinned; on CPU a copy, which reads and writes."""
    ways = [row["bytes_per_s"] for row in profile.device["transfers"] if not row["pinned"]]
    return float(min(ways)) if ways else profile.bytes_per_s / 2


def _device() -> tuple[Device, str]:
    """By the data sheet, where the card has one."""
    if device_kind() == "cpu":
        return ASSUMED_CPU, "an assumed CPU core"
    from flashedge.profiler.errors import ProfileError
    from flashedge.profiler.gpu import read_cards

    try:
        card = read_cards()[0]
    except ProfileError as error:
        raise EngineError(str(error), hint=error.hint) from error
    sheet = sheet_of(card.name)
    if sheet is None:
        return RTX_4090, f"an RTX 4090 (no data sheet of {card.name})"
    device = Device(
        name=card.name,
        flops=sheet.tflops * 1e12,
        bandwidth=sheet.gb_per_s * 1e9,
        memory_bytes=card.memory_bytes,
    )
    return device, f"{card.name} by its data sheet"
