"""The memory that a pair needs, whether it fits a device, what else would, and its KV plan."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from flashedge.config import Config
from flashedge.config_field import PerEngine
from flashedge.errors import ConfigError
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.memory.card_memory import Place, count_cards
from flashedge.models.memory.engine_memory import (
    CARD_SEQUENCES,
    CPU_SEQUENCES,
    IN_FLIGHT_TOKENS,
    NOTHING,
    EngineMemory,
    check_spread,
    count_path_bytes,
    estimate_engine,
)
from flashedge.models.registry import load_pairs
from flashedge.models.shape import ModelShape
from flashedge.models.specs import Pair, Quantized
from flashedge.sizes import format_size

KV_GRANULARITY_BYTES = 64 << 20
"""KV sizes are rounded down to a multiple of this, so that small changes of a card's free memory
change no option."""
SPARE_TOKENS = 64
"""Tokens of KV beyond an engine's longest path: the partly filled block, and vLLM's null block."""

RAM_KV = 1 / 8
"""Largest share of a machine's RAM that is planned for KV. Pages that were written once are never
given back, and a chat writes new ones until the plan is used up. Chosen by hand: 1 GiB of 8 holds
37,000 tokens of a 1.5B model; twice as much would leave a laptop's other programs without."""

EnginePairMemory = tuple[EngineMemory, EngineMemory]
FindMeasured = Callable[[int], EnginePairMemory | None]
"""Takes `max_num_seqs`. Returns what both engines were measured to take with it, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairNeed:
    """The memory that a pair's engines need on each card. Tuples are (generator, verifier)."""

    engines: EnginePairMemory
    """What each engine takes in addition to its KV."""
    sequences: int
    """vLLM's `max_num_seqs`."""
    shapes: tuple[ModelShape, ModelShape]
    limits: tuple[int, int]
    """vLLM's `max_model_len`."""
    cards: tuple[int, int] = (1, 1)
    """Cards that each engine is spread over."""
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
        """KV with which each engine just starts: one path of full length and what is beyond it."""
        parts = zip(self.shapes, self.limits, self.cards, strict=True)
        generator, verifier = (count_least_kv(*part) for part in parts)
        return generator, verifier

    def count_path_bytes(self, engine: int, tokens: int) -> int:
        """Count the KV and states of a path on each card of an engine: 0 for the generator."""
        return count_path_bytes(self.shapes[engine], self.cards[engine], tokens)

    @property
    def least_bytes(self) -> int:
        """Free bytes of one device on which both engines just start."""
        return sum(engine.total for engine in self.engines) + sum(self.least_kv_bytes)

    def find_rooms(
        self, place: Place, sizes: tuple[int | None, int | None] = (None, None)
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (bytes that a card has left for the KV that is not set, negative if none; the
        engines on it). sizes: the KV that is set for each engine."""
        least = self.least_kv_bytes
        for card, on_it in place.cards:
            room = card.free_bytes - sum(self.engines[i].total + (sizes[i] or 0) for i in on_it)
            if not card.is_card:
                needed = sum(least[i] for i in on_it if sizes[i] is None)
                room = min(room, max(int(card.memory_bytes * RAM_KV), needed))
            yield room, on_it

    def sum_rooms(self, place: Place) -> int:
        """The bytes that all cards have left for KV. Negative where the rest does not fit."""
        return sum(room for room, _ in self.find_rooms(place))

    def find_shortfall(self, place: Place) -> int:
        """Bytes that are missing for the engines to start. 0 where the pair fits."""
        least = self.least_kv_bytes
        return sum(
            max(0, sum(least[i] for i in on_it) - room) for room, on_it in self.find_rooms(place)
        )

    def count_paths(self, place: Place, tokens: int) -> int:
        """The paths of `tokens` tokens that both engines hold at once if no two share KV. Of longer
        ones than an engine takes, it holds as much as it takes."""
        each = [self.count_path_bytes(i, min(tokens, self.limits[i])) for i in (0, 1)]
        rooms = self.find_rooms(place)
        return max(0, min(room // sum(each[i] for i in on_it) for room, on_it in rooms))

    def fits(self, place: Place) -> bool:
        return self.find_shortfall(place) == 0


def count_least_kv(shape: ModelShape, limit: int, cards: int) -> int:
    """Count the KV bytes on each card with which an engine just starts. limit: its
    `max_model_len`."""
    tokens = limit + max(SPARE_TOKENS, shape.state_tokens)
    return count_path_bytes(shape, cards, tokens, IN_FLIGHT_TOKENS)


def find_need(
    pair: Pair, config: Config, place: Place, find_measured: FindMeasured = lambda _: None
) -> PairNeed:
    """What the pair needs on `place` with the largest `max_num_seqs` that fits, else the smallest.
    A set `max_num_seqs` is the only candidate. Raises CheckpointError where the shape of a model is
    unknown, ConfigError where a model can't be spread over the cards of `place`.
    """
    shapes = find_pair_shapes(pair, config)
    cards = count_cards(place)
    for role, shape, count in zip(("generator", "verifier"), shapes, cards, strict=True):
        check_spread(shape, count, role)
    limits = pair.generator.max_model_len, pair.verifier.max_model_len
    for sequences in list_sequences(config, on_card=place.is_card):
        generator, verifier = (
            estimate_engine(shape, sequences, samples=samples, on_card=place.is_card, cards=count)
            for shape, samples, count in zip(shapes, (True, False), cards, strict=True)
        )
        if not pair.has_verifier:
            verifier, shapes = NOTHING, (shapes[0], replace(shapes[1], layers=0))
        need = PairNeed(
            engines=find_measured(sequences) or (generator, verifier),
            sequences=sequences,
            shapes=shapes,
            limits=limits,
            cards=cards,
        )
        if need.fits(place):
            break
    return need


def list_sequences(config: Config, *, on_card: bool) -> tuple[int, ...]:
    """Candidates for `max_num_seqs`, largest first."""
    if config.max_num_seqs is not None:
        return (config.max_num_seqs,)
    return CARD_SEQUENCES if on_card else (CPU_SEQUENCES,)


def choose_quantized(pair: Pair, need: PairNeed, place: Place) -> PairNeed | None:
    """The need with the fewest and then the largest quantized checkpoints; None if none fits."""
    found = [n for n in _list_choices(pair, need) if n.replacements and n.fits(place)]
    return min(found, key=lambda n: (len(n.replacements), -sum(n.weights)), default=None)


def list_fitting(pairs: Iterable[Pair], place: Place, config: Config) -> Iterator[Pair]:
    """The pairs that fit unchanged."""
    return (pair for pair, need in list_needs(pairs, place, config) if need.fits(place))


def list_needs(
    pairs: Iterable[Pair], place: Place, config: Config
) -> Iterator[tuple[Pair, PairNeed]]:
    """The pairs with their needs, without those of unknown shape or that can't be spread."""
    for pair in pairs:
        with suppress(ConfigError):
            yield pair, find_need(pair, config, place)


def choose_auto(pairs: Iterable[Pair], place: Place, config: Config) -> Pair | None:
    """Choose the pair with the largest weights among those marked `auto` that fit; None if none."""
    fitting = list_fitting((pair for pair in pairs if pair.auto), place, config)
    return max(fitting, key=lambda p: sum(_list_weights(p, config)), default=None)


def _list_weights(pair: Pair, config: Config) -> list[int]:
    return [shape.weights_bytes for shape in find_pair_shapes(pair, config)]


def suggest(pair: Pair, pairs: Iterable[Pair], place: Place, config: Config) -> str:
    """What would fit in place of `pair`: a pair of the same models quantized; else quantized
    checkpoints of this pair's models; else the pair that shares most models with this one, with
    the largest weights among those."""
    others = list_fitting((p for p in pairs if p.name != pair.name), place, config)
    by_name = {p.name: p for p in others}
    by_name.pop("bundled", None)  # it answers nothing that others do

    def rank(other: Pair) -> tuple[int, int]:
        models = (other.generator, pair.generator), (other.verifier, pair.verifier)
        same = sum(theirs.is_variant_of(ours) for theirs, ours in models)
        return same, sum(_list_weights(other, config))

    fitting = sorted(by_name.values(), key=rank, reverse=True)
    has_twin = bool(fitting) and rank(fitting[0])[0] == 2
    smaller = None if has_twin else choose_quantized(pair, find_need(pair, config, place), place)
    if smaller is not None:
        names = ", ".join(f"{role} {q.source} ({q.method})" for role, q in smaller.replacements)
        return f"it fits quantized: put {names} into your models.toml"
    if not fitting:
        return "no pair of models.toml fits; end other programs or use a larger card"
    rest = ", ".join(p.name for p in fitting[1:4])
    also = f" (these fit too: {rest})" if rest else ""
    return f"the nearest pair that fits: flashedge up --pair {fitting[0].name}{also}"


def _list_choices(pair: Pair, need: PairNeed) -> Iterator[PairNeed]:
    """The need with each choice of the models' own checkpoints and quantized ones."""
    for chosen in product(*((None, *s.quantized) for s in (pair.generator, pair.verifier))):
        generator, verifier = (
            own if other is None else replace(own, weights=-(-other.weights_bytes // count))
            for own, other, count in zip(need.engines, chosen, need.cards, strict=True)
        )
        roles = zip(("generator", "verifier"), chosen, strict=True)
        replacements = tuple((role, other) for role, other in roles if other)
        yield replace(need, engines=(generator, verifier), replacements=replacements)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How the memory of a device is divided."""

    kv_bytes: tuple[int, int]
    """Sizes for generator and verifier, on each card of an engine."""
    need: PairNeed


def set_sizes(config: Config, kv_bytes: tuple[int, int], sequences: int) -> Config:
    """The configuration with these KV sizes of (generator, verifier) and this `max_num_seqs`."""
    return replace(config, kv_bytes=PerEngine(*kv_bytes), max_num_seqs=sequences)


def find_explicit(pair: Pair, config: Config) -> tuple[int | None, int | None]:
    """The KV sizes of (generator, verifier) that the settings or else models.toml set. Without a
    verifier all is the generator's."""
    given = pair.memory
    listed = (None, None) if given is None else (given.generator_kv_bytes, given.verifier_kv_bytes)
    if not pair.has_verifier:
        return config.kv_bytes.generator or listed[0], 0
    return config.kv_bytes.generator or listed[0], config.kv_bytes.verifier or listed[1]


def plan_memory(
    pair: Pair, config: Config, place: Place, find_measured: FindMeasured = lambda _: None
) -> MemoryPlan:
    """Plan the memory of a pair on `place`. KV sizes that were set stay.

    Raises ConfigError with the figures where the pair does not fit, CheckpointError where the shape
    of a model is unknown.
    """
    need = find_need(pair, config, place, find_measured)
    explicit = find_explicit(pair, config)
    sizes, least, missing = list(explicit), need.least_kv_bytes, 0
    for left, on_it in need.find_rooms(place, explicit):
        unset = [i for i in on_it if sizes[i] is None]
        missing += max(0, sum(least[i] for i in unset) - left) if unset else 0
        for i, size in zip(unset, divide(left, [least[i] for i in unset]), strict=True):
            sizes[i] = size
    if missing and need.fits(place):
        raise ConfigError(
            f"{pair.name} fits {place.name}, but not with kv_bytes as set:"
            f" {format_size(missing)} are missing",
            hint="lower kv_bytes, or leave it unset",
        )
    if missing:
        raise ConfigError(
            f"{pair.name} does not fit {place.name}: {describe_lack(need, place, missing)}",
            hint=suggest(pair, load_pairs(config).values(), place, config),
        )
    return MemoryPlan(kv_bytes=(sizes[0] or 0, sizes[1] or 0), need=need)


def divide(room: int, least: Sequence[int]) -> list[int]:
    """Divide the bytes of a card among its engines. Each gets an equal part, or less if the others
    need more for their `least`. A part is rounded down, but not below its own `least`."""
    parts = []
    for i, own in enumerate(least):
        later = least[i + 1 :]
        part = room - max(room // (1 + len(later)) * len(later), sum(later))
        parts.append(max(own, part // KV_GRANULARITY_BYTES * KV_GRANULARITY_BYTES))
        room -= max(own, part)
    return parts


def describe_lack(need: PairNeed, place: Place, missing: int) -> str:
    """Describe what the engines need and have. missing: bytes."""
    overheads = " + ".join(format_size(engine.overhead) for engine in need.engines)
    weights = " + ".join(format_size(each) for each in need.weights)
    least = " + ".join(format_size(each) for each in need.least_kv_bytes)
    basis = "estimated" if need.is_estimate else "measured"
    usable = " + ".join(
        f"{format_size(max(0, each.free_bytes))} of {format_size(each.memory_bytes)}"
        for each, _ in place.cards
    )
    return (
        f"{format_size(missing)} are missing. Weights take {weights}, the engines {overheads}"
        f" more ({basis}, with {need.sequences} sequences a step), KV of one path {least};"
        f" {usable} can be used{describe_holders(place)}"
    )


def describe_holders(place: Place) -> str:
    """Name the programs that hold memory of the cards, in a clause. Empty if none is known."""
    held = [by for each, _ in place.cards for by in each.held_by]
    return f"; other programs hold memory: {', '.join(held)}" if held else ""
