"""Estimates from models.toml, before any download, whether a pair fits a card and what would."""

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
class CardMemory:
    """The memory that a pair is to run in: a card's, or this machine's RAM."""

    name: str
    memory_bytes: int

    reserved_bytes: int = RESERVED_BYTES
    """Memory that the driver, the display and other programs hold."""

    is_measured: bool = False
    """Whether `reserved_bytes` was measured here. Otherwise it is the usual amount."""

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PairNeed:
    """The memory that the two engines of a pair need. Tuples are (generator, verifier)."""

    weights: tuple[int, int]
    """Bytes of the weights."""

    path_bytes: tuple[int, int]
    """KV bytes of one path of full length."""

    limits: tuple[int, int]
    """Tokens of a path of full length."""

    replacements: tuple[tuple[str, Quantized], ...] = ()
    """Quantized checkpoints that replace the pair's own, by role."""

    @property
    def fixed_bytes(self) -> int:
        """Bytes of everything but the KV."""
        return sum(self.weights) + 2 * ENGINE_OVERHEAD_BYTES

    @property
    def least_bytes(self) -> int:
        """Bytes with KV for one path in each engine. With less an engine does not start."""
        return self.fixed_bytes + sum(self.path_bytes)

    def kv_bytes(self, card: CardMemory) -> int:
        """Bytes left for KV. Negative where the rest does not fit."""
        return estimate_kv_room(card.free_bytes, self.weights)

    def count_paths(self, card: CardMemory, tokens: int) -> int:
        """Count the paths of `tokens` tokens that both engines hold at once if no two share KV."""
        each = sum(
            b * tokens / limit for b, limit in zip(self.path_bytes, self.limits, strict=True)
        )
        return max(0, int(self.kv_bytes(card) / each))

    def fits(self, card: CardMemory) -> bool:
        return self.least_bytes <= card.free_bytes


def estimate_need(pair: Pair, config: Config) -> PairNeed:
    """Estimate what a pair needs. Raises CheckpointError where the shape of a model is unknown."""
    shapes = find_pair_shapes(pair, config)
    limits = pair.generator.max_model_len, pair.verifier.max_model_len
    generator, verifier = shapes
    return PairNeed(
        weights=(generator.weights_bytes, verifier.weights_bytes),
        path_bytes=(
            _compute_path_bytes(generator, limits[0]),
            _compute_path_bytes(verifier, limits[1]),
        ),
        limits=limits,
    )


def choose_quantized(pair: Pair, need: PairNeed, card: CardMemory) -> PairNeed | None:
    """Replace as few checkpoints as needed by quantized ones, the largest that fit. None where no
    choice fits."""
    found = [n for n in _list_choices(pair, need) if n.replacements and n.fits(card)]
    return min(found, key=lambda n: (len(n.replacements), -sum(n.weights)), default=None)


def list_fitting(pairs: Iterable[Pair], card: CardMemory, config: Config) -> Iterator[str]:
    """List the names of the pairs that fit unchanged. Pairs of unknown shape are left out."""
    for pair in pairs:
        try:
            if estimate_need(pair, config).fits(card):
                yield pair.name
        except CheckpointError:
            continue


def _list_choices(pair: Pair, need: PairNeed) -> Iterator[PairNeed]:
    roles: tuple[tuple[str, ModelSpec], ...] = (
        ("generator", pair.generator),
        ("verifier", pair.verifier),
    )
    for chosen in product(*((None, *spec.quantized) for _, spec in roles)):
        weights = tuple(
            own if other is None else other.weights_bytes
            for own, other in zip(need.weights, chosen, strict=True)
        )
        replacements = tuple(
            (role, other) for (role, _), other in zip(roles, chosen, strict=True) if other
        )
        yield replace(need, weights=(weights[0], weights[1]), replacements=replacements)


def _compute_path_bytes(shape: ModelShape, tokens: int) -> int:
    return shape.kv_bytes_per_token * tokens
