"""Whether a pair fits a card, and what would: reckoned from models.toml, before any download."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.kv_plan import estimate_kv_room
from flashedge.models.shape import ModelShape
from flashedge.models.specs import ENGINE_OVERHEAD_BYTES, RESERVED_BYTES, ModelSpec, Pair, Quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pair is to run. held_bytes: what is not to be had: other programs, driver, display;
    seen: whether that was measured here, else it is the usual."""

    name: str
    memory_bytes: int
    held_bytes: int = RESERVED_BYTES
    seen: bool = False

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of both engines. weights, path_bytes: (generator, verifier); path_bytes: KV of one path of
    full length; limits: its tokens; stand_ins: quantized checkpoints in the place of the pair's
    own, by role."""

    weights: tuple[int, int]
    path_bytes: tuple[int, int]
    limits: tuple[int, int]
    stand_ins: tuple[tuple[str, Quantized], ...] = ()

    @property
    def fixed_bytes(self) -> int:
        """All but the KV."""
        return sum(self.weights) + 2 * ENGINE_OVERHEAD_BYTES

    @property
    def least_bytes(self) -> int:
        """With KV for one path in each engine: below that it does not start."""
        return self.fixed_bytes + sum(self.path_bytes)

    def kv_bytes(self, place: Place) -> int:
        """What is left for KV; negative if nothing is."""
        return estimate_kv_room(place.free_bytes, self.weights)

    def paths(self, place: Place, tokens: int) -> int:
        """Paths of so many tokens that both engines hold at once with nothing shared."""
        each = sum(
            b * tokens / limit for b, limit in zip(self.path_bytes, self.limits, strict=True)
        )
        return max(0, int(self.kv_bytes(place) / each))

    def fits(self, place: Place) -> bool:
        return self.least_bytes <= place.free_bytes


def need_of(pair: Pair, config: Config) -> Need:
    """Raises CheckpointError for a pair whose shape nobody knows."""
    shapes = find_pair_shapes(pair, config)
    limits = pair.generator.max_model_len, pair.verifier.max_model_len
    generator, verifier = shapes
    return Need(
        weights=(generator.weights_bytes, verifier.weights_bytes),
        path_bytes=(_path(generator, limits[0]), _path(verifier, limits[1])),
        limits=limits,
    )


def quantized(pair: Pair, need: Need, place: Place) -> Need | None:
    """The pair with as few and as large quantized checkpoints as make it fit; None: none do."""
    found = [n for n in _choices(pair, need) if n.stand_ins and n.fits(place)]
    return min(found, key=lambda n: (len(n.stand_ins), -sum(n.weights)), default=None)


def that_fit(pairs: Iterable[Pair], place: Place, config: Config) -> Iterator[str]:
    """Names of the pairs that fit as they are; those of unknown shape are left out."""
    for pair in pairs:
        try:
            if need_of(pair, config).fits(place):
                yield pair.name
        except CheckpointError:
            continue


def _choices(pair: Pair, need: Need) -> Iterator[Need]:
    roles: tuple[tuple[str, ModelSpec], ...] = (
        ("generator", pair.generator),
        ("verifier", pair.verifier),
    )
    for chosen in product(*((None, *spec.quantized) for _, spec in roles)):
        weights = tuple(
            own if other is None else other.weights_bytes
            for own, other in zip(need.weights, chosen, strict=True)
        )
        stand_ins = tuple(
            (role, other) for (role, _), other in zip(roles, chosen, strict=True) if other
        )
        yield replace(need, weights=(weights[0], weights[1]), stand_ins=stand_ins)


def _path(shape: ModelShape, tokens: int) -> int:
    return shape.kv_bytes_per_token * tokens
