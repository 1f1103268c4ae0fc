"""What a pair needs of a device's memory, whether it fits, and what would fit instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from flashedge.config import Config
from flashedge.errors import CheckpointError
from flashedge.models.batch_limits import CARD_SEQUENCES, CPU_SEQUENCES, choose_limits
from flashedge.models.card_memory import CardMemory
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.engine_memory import EngineMemory, estimate_engine
from flashedge.models.shape import ModelShape
from flashedge.models.specs import ModelSpec, Pair, Quantized

SPARE_TOKENS = 64
"""KV of an engine beyond its longest path: the partly filled block, and the block that vLLM keeps
for padding."""

EnginePairMemory = tuple[EngineMemory, EngineMemory]
FindMeasured = Callable[[int], EnginePairMemory | None]
"""Finds what was measured of both engines for steps of so many sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairNeed:
    """The memory that the two engines of a pair need. Tuples are (generator, verifier)."""

    engines: EnginePairMemory
    """What each engine takes beside its KV."""

    sequences: int
    """Most sequences of one step."""

    path_bytes: tuple[int, int]
    """KV bytes of one path of full length."""

    limits: tuple[int, int]
    """Tokens of a path of full length."""

    replacements: tuple[tuple[str, Quantized], ...] = ()
    """Quantized checkpoints that replace the pair's own, by role."""

    @property
    def weights(self) -> tuple[int, int]:
        return self.engines[0].weights, self.engines[1].weights

    @property
    def is_estimate(self) -> bool:
        return any(engine.is_estimate for engine in self.engines)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of everything but the KV."""
        return sum(engine.total for engine in self.engines)

    @property
    def least_kv_bytes(self) -> tuple[int, int]:
        """KV bytes without which an engine does not start: one path of full length."""
        least = [
            -(-each * (limit + SPARE_TOKENS) // limit)
            for each, limit in zip(self.path_bytes, self.limits, strict=True)
        ]
        return least[0], least[1]

    @property
    def least_bytes(self) -> int:
        return self.fixed_bytes + sum(self.least_kv_bytes)

    def kv_bytes(self, card: CardMemory) -> int:
        """Bytes left for KV. Negative where the rest does not fit."""
        return card.free_bytes - self.fixed_bytes

    def count_paths(self, card: CardMemory, tokens: int) -> int:
        """Count the paths of `tokens` tokens that both engines hold at once if no two share KV."""
        each = sum(
            b * tokens / limit for b, limit in zip(self.path_bytes, self.limits, strict=True)
        )
        return max(0, int(self.kv_bytes(card) / each))

    def fits(self, card: CardMemory) -> bool:
        return self.least_bytes <= card.free_bytes


def find_need(
    pair: Pair, config: Config, card: CardMemory, find_measured: FindMeasured = lambda _: None
) -> PairNeed:
    """What the pair needs on `card` with the most sequences at which it fits, or with the fewest.

    A setting of `max_num_seqs` is respected. Raises CheckpointError where the shape of a model is
    unknown.
    """
    shapes = find_pair_shapes(pair, config)
    needs = (
        _build_need(pair, shapes, count, card, find_measured(count))
        for count in list_sequences(config, on_card=card.is_card)
    )
    for need in needs:
        if need.fits(card):
            break
    return need


def list_sequences(config: Config, *, on_card: bool) -> tuple[int, ...]:
    """The numbers of sequences a step to choose from, largest first."""
    if config.max_num_seqs is not None:
        return (config.max_num_seqs,)
    return CARD_SEQUENCES if on_card else (CPU_SEQUENCES,)


def choose_quantized(pair: Pair, need: PairNeed, card: CardMemory) -> PairNeed | None:
    """Replace as few checkpoints as needed by quantized ones, the largest that fit. None where no
    choice fits."""
    found = [n for n in _list_choices(pair, need) if n.replacements and n.fits(card)]
    return min(found, key=lambda n: (len(n.replacements), -sum(n.weights)), default=None)


def list_fitting(pairs: Iterable[Pair], card: CardMemory, config: Config) -> Iterator[str]:
    """List the names of the pairs that fit unchanged. Pairs of unknown shape are left out."""
    for pair in pairs:
        try:
            if find_need(pair, config, card).fits(card):
                yield pair.name
        except CheckpointError:
            continue


def suggest(pair: Pair, pairs: Iterable[Pair], card: CardMemory, config: Config) -> str:
    """Say what would fit `card` in place of `pair`: a quantized checkpoint, else the nearest pair.

    The nearest pair shares most models with this one, and has the largest weights among those.
    """
    other = choose_quantized(pair, find_need(pair, config, card), card)
    if other is not None:
        names = ", ".join(f"{role} {q.source} ({q.method})" for role, q in other.replacements)
        return f"it fits quantized: put {names} into your models.toml"
    known = {p.name: p for p in pairs if p.name not in (pair.name, "bundled")}
    fitting = [known[name] for name in list_fitting(known.values(), card, config)]
    if not fitting:
        return "no pair of models.toml fits but `bundled`; end other programs or use a larger card"

    def rank(other: Pair) -> tuple[int, int]:
        same = (other.verifier == pair.verifier) + (other.generator == pair.generator)
        return same, sum(shape.weights_bytes for shape in find_pair_shapes(other, config))

    fitting.sort(key=rank, reverse=True)
    rest = ", ".join(p.name for p in fitting[1:4])
    also = f" (these fit too: {rest})" if rest else ""
    return f"the nearest pair that fits: flashedge up --pair {fitting[0].name}{also}"


def _build_need(
    pair: Pair,
    shapes: tuple[ModelShape, ModelShape],
    sequences: int,
    card: CardMemory,
    measured: EnginePairMemory | None,
) -> PairNeed:
    """`measured` replaces the estimate."""
    limits = pair.generator.max_model_len, pair.verifier.max_model_len
    return PairNeed(
        engines=measured or estimate_pair(shapes, sequences, on_card=card.is_card),
        sequences=sequences,
        path_bytes=(
            shapes[0].kv_bytes_per_token * limits[0],
            shapes[1].kv_bytes_per_token * limits[1],
        ),
        limits=limits,
    )


def estimate_pair(
    shapes: tuple[ModelShape, ModelShape], sequences: int, *, on_card: bool
) -> EnginePairMemory:
    """Estimate the memory of both engines for steps of up to `sequences` sequences."""
    generator, verifier = (
        estimate_engine(
            shape,
            choose_limits(sequences, samples=samples, on_card=on_card),
            on_card=on_card,
        )
        for shape, samples in zip(shapes, (True, False), strict=True)
    )
    return generator, verifier


def _list_choices(pair: Pair, need: PairNeed) -> Iterator[PairNeed]:
    roles: tuple[tuple[str, ModelSpec], ...] = (
        ("generator", pair.generator),
        ("verifier", pair.verifier),
    )
    for chosen in product(*((None, *spec.quantized) for _, spec in roles)):
        generator, verifier = (
            own if other is None else replace(own, weights=other.weights_bytes)
            for own, other in zip(need.engines, chosen, strict=True)
        )
        replacements = tuple(
            (role, other) for (role, _), other in zip(roles, chosen, strict=True) if other
        )
        yield replace(need, engines=(generator, verifier), replacements=replacements)
