"""What a pair needs of a device's memory, whether it fits, and what would fit instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from flashedge.config import Config
from flashedge.errors import CheckpointError, ConfigError
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.memory.card_memory import Place, count_cards
from flashedge.models.memory.engine_memory import (
    CARD_SEQUENCES,
    CPU_SEQUENCES,
    EngineMemory,
    check_spread,
    choose_limits,
    count_kv_bytes,
    estimate_engine,
)
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
    """The memory that the two engines of a pair need, on each card. Tuples are (generator,
    verifier)."""

    engines: EnginePairMemory
    """What each engine takes beside its KV."""
    sequences: int
    """Most sequences of one step."""
    path_bytes: tuple[int, int]
    """KV bytes of one path of full length."""
    limits: tuple[int, int]
    """Tokens of a path of full length."""
    cards: tuple[int, int] = (1, 1)
    """How many cards each engine is spread over."""
    replacements: tuple[tuple[str, Quantized], ...] = ()
    """Quantized checkpoints that replace the pair's own, by role."""

    @property
    def weights(self) -> tuple[int, int]:
        return self.engines[0].weights, self.engines[1].weights

    @property
    def is_estimate(self) -> bool:
        return any(engine.is_estimate for engine in self.engines)

    @property
    def least_kv_bytes(self) -> tuple[int, int]:
        """KV bytes without which an engine does not start: one path of full length."""
        least = [
            -(-each * (limit + SPARE_TOKENS) // limit)
            for each, limit in zip(self.path_bytes, self.limits, strict=True)
        ]
        return least[0], least[1]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of everything but the KV."""
        return sum(engine.total for engine in self.engines)

    @property
    def least_bytes(self) -> int:
        """Free bytes of one device on which both engines just start."""
        return self.fixed_bytes + sum(self.least_kv_bytes)

    def find_rooms(self, place: Place) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the bytes that each card has left for KV, with the engines on it.

        They are negative where the rest does not fit.
        """
        for card, on_it in place.cards:
            yield card.free_bytes - sum(self.engines[i].total for i in on_it), on_it

    def kv_bytes(self, place: Place) -> int:
        """Bytes left for KV, of both engines together. Negative where the rest does not fit."""
        return sum(room for room, _ in self.find_rooms(place))

    def find_lack(self, place: Place) -> int:
        """Bytes that are missing for the engines to start. 0 where the pair fits."""
        least = self.least_kv_bytes
        return sum(
            max(0, sum(least[i] for i in on_it) - room) for room, on_it in self.find_rooms(place)
        )

    def count_paths(self, place: Place, tokens: int) -> int:
        """Count the paths of `tokens` tokens that both engines hold at once if no two share KV."""
        each = [b * tokens / limit for b, limit in zip(self.path_bytes, self.limits, strict=True)]
        rooms = self.find_rooms(place)
        return max(0, min(int(room / sum(each[i] for i in on_it)) for room, on_it in rooms))

    def fits(self, place: Place) -> bool:
        return self.find_lack(place) == 0


def find_need(
    pair: Pair, config: Config, card: Place, find_measured: FindMeasured = lambda _: None
) -> PairNeed:
    """What the pair needs on `card` with the most sequences at which it fits, or with the fewest.

    A setting of `max_num_seqs` is respected. Raises CheckpointError where the shape of a model is
    unknown, ConfigError where a model can't be spread over so many cards.
    """
    shapes = find_pair_shapes(pair, config)
    roles = ("generator", "verifier")
    for role, shape, count in zip(roles, shapes, count_cards(card), strict=True):
        check_spread(shape, count, f"{role}_devices")
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


def choose_quantized(pair: Pair, need: PairNeed, card: Place) -> PairNeed | None:
    """Replace as few checkpoints as needed by quantized ones, the largest that fit. None where no
    choice fits."""
    found = [n for n in _list_choices(pair, need) if n.replacements and n.fits(card)]
    return min(found, key=lambda n: (len(n.replacements), -sum(n.weights)), default=None)


def list_fitting(pairs: Iterable[Pair], card: Place, config: Config) -> Iterator[str]:
    """List the names of the pairs that fit unchanged.

    Left out are pairs of unknown shape, and those that can't be spread over so many cards.
    """
    for pair in pairs:
        try:
            if find_need(pair, config, card).fits(card):
                yield pair.name
        except (CheckpointError, ConfigError):
            continue


def suggest(pair: Pair, pairs: Iterable[Pair], card: Place, config: Config) -> str:
    """Say what would fit `card` in place of `pair`: a pair of the same models, quantized, or
    quantized checkpoints that no pair has, else the nearest pair.

    The nearest pair shares most models with this one, and has the largest weights among those.
    """
    known = {p.name: p for p in pairs if p.name not in (pair.name, "bundled")}
    fitting = [known[name] for name in list_fitting(known.values(), card, config)]

    def rank(other: Pair) -> tuple[int, int]:
        models = (other.generator, pair.generator), (other.verifier, pair.verifier)
        same = sum(theirs.is_variant_of(ours) for theirs, ours in models)
        return same, sum(shape.weights_bytes for shape in find_pair_shapes(other, config))

    fitting.sort(key=rank, reverse=True)
    has_twin = bool(fitting) and rank(fitting[0])[0] == 2
    other = None if has_twin else choose_quantized(pair, find_need(pair, config, card), card)
    if other is not None:
        names = ", ".join(f"{role} {q.source} ({q.method})" for role, q in other.replacements)
        return f"it fits quantized: put {names} into your models.toml"
    if not fitting:
        return "no pair of models.toml fits but `bundled`; end other programs or use a larger card"
    rest = ", ".join(p.name for p in fitting[1:4])
    also = f" (these fit too: {rest})" if rest else ""
    return f"the nearest pair that fits: flashedge up --pair {fitting[0].name}{also}"


def _build_need(
    pair: Pair,
    shapes: tuple[ModelShape, ModelShape],
    sequences: int,
    card: Place,
    measured: EnginePairMemory | None,
) -> PairNeed:
    """`measured` replaces the estimate."""
    limits = pair.generator.max_model_len, pair.verifier.max_model_len
    cards = count_cards(card)
    return PairNeed(
        engines=measured or estimate_pair(shapes, sequences, on_card=card.is_card, cards=cards),
        sequences=sequences,
        path_bytes=(
            count_kv_bytes(shapes[0], cards[0]) * limits[0],
            count_kv_bytes(shapes[1], cards[1]) * limits[1],
        ),
        limits=limits,
        cards=cards,
    )


def estimate_pair(
    shapes: tuple[ModelShape, ModelShape],
    sequences: int,
    *,
    on_card: bool,
    cards: tuple[int, int] = (1, 1),
) -> EnginePairMemory:
    """Estimate the memory of both engines for steps of up to `sequences` sequences."""
    generator, verifier = (
        estimate_engine(
            shape,
            choose_limits(sequences, samples=samples, on_card=on_card),
            on_card=on_card,
            cards=count,
        )
        for shape, samples, count in zip(shapes, (True, False), cards, strict=True)
    )
    return generator, verifier


def _list_choices(pair: Pair, need: PairNeed) -> Iterator[PairNeed]:
    roles: tuple[tuple[str, ModelSpec], ...] = (
        ("generator", pair.generator),
        ("verifier", pair.verifier),
    )
    for chosen in product(*((None, *spec.quantized) for _, spec in roles)):
        generator, verifier = (
            own if other is None else replace(own, weights=-(-other.weights_bytes // count))
            for own, other, count in zip(need.engines, chosen, need.cards, strict=True)
        )
        replacements = tuple(
            (role, other) for (role, _), other in zip(roles, chosen, strict=True) if other
        )
        yield replace(need, engines=(generator, verifier), replacements=replacements)
