"""The start-up self-test on engines that are a formula: its turns, replay shape and contexts."""

import asyncio
import itertools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest
from flashedge.engine.self_test_turns import Turns
from flashedge.engine.vllm import batch_invariance, shape_probe
from flashedge.scheduling.determinism import PassShape
from flashedge.scheduling.kv.split import EngineRole
from flashedge.types import TokenIds


async def test_a_turn_waits_for_users_and_waiting_takes_none_of_its_time() -> None:
    clock = asyncio.get_running_loop().time
    open_turns: list[tuple[EngineRole, bool]] = []

    def count(role: EngineRole) -> AbstractContextManager[None]:
        open_turns.append((role, clock() >= 1000))
        return nullcontext()

    async def is_free() -> bool:
        return clock() >= 1000

    turns = Turns(is_free, count, left_s=10)
    async with turns.take(EngineRole.VERIFIER):
        assert 1000 <= clock() <= 1001
        await asyncio.sleep(4)
    assert open_turns == [(EngineRole.VERIFIER, True)]
    assert turns.left_s == pytest.approx(6)


async def test_the_time_of_all_turns_together_is_limited() -> None:
    turns = Turns(left_s=10)
    async with turns.take(EngineRole.VERIFIER):
        await asyncio.sleep(7)
    for longer_s in (7, 0.01):
        with pytest.raises(TimeoutError):
            async with turns.take(EngineRole.VERIFIER):
                await asyncio.sleep(longer_s)
        assert turns.left_s == 0


@dataclass
class FormulaEngine:
    """What a request draws depends on its seed, and on what the kernels do not keep equal."""

    position_invariant: bool = True
    chunk_invariant: bool = True
    repeatable: bool = True
    max_model_len: int = 1024
    codec = SimpleNamespace(encode=lambda text: range(9))
    options = SimpleNamespace(max_num_seqs=64)
    shape: Any = None
    open: int = 0
    drawn: int = 0

    async def set_replay_shape(self, shape: PassShape) -> None:
        self.shape = shape

    async def draw(self, request: ExtendRequest) -> Any:
        assert request.deterministic
        self.open += 1
        self.drawn += 1
        place = self.open if self.shape.group > 1 and not self.position_invariant else 0
        chunk = 0 if self.chunk_invariant else self.shape.prefill_windows
        await asyncio.sleep(0)
        self.open -= 1
        return (request.seed, place, chunk, 0 if self.repeatable else self.drawn)


GROUPED = {"window": 32, "group": 4, "prefill_windows": 4}
ALONE = {"window": 32, "group": 1, "prefill_windows": 1}


@pytest.mark.parametrize(
    ("engine", "shape", "is_invariant"),
    [
        (FormulaEngine(), GROUPED, True),
        (FormulaEngine(chunk_invariant=False), {**GROUPED, "prefill_windows": 1}, True),
        (FormulaEngine(position_invariant=False), ALONE, False),
        (FormulaEngine(repeatable=False), None, False),
    ],
)
async def test_the_first_shape_that_holds_is_chosen(
    monkeypatch: pytest.MonkeyPatch, engine: FormulaEngine, shape: Any, is_invariant: bool
) -> None:
    monkeypatch.setattr(shape_probe, "draw_tokens", lambda of, request: of.draw(request))
    found = await shape_probe.choose_shape(engine, Turns(), on_cpu=True)  # type: ignore[arg-type]
    assert found == {"replay_shape": shape, "position_invariant": is_invariant}
    if shape is not None:
        assert engine.shape == PassShape.from_json(shape), "the engine uses it"


def test_a_pass_of_a_card_has_no_more_rows_than_its_memory_is_planned_for() -> None:
    for sequences, rows in ((128, [128, 128, 64]), (1000, [256, 256, 64]), (32, [64])):
        shapes = shape_probe.list_shapes(sequences, on_cpu=False)
        assert [shape.rows for shape in shapes] == rows


class CachingEngine:
    """Caches every prefix. Above `limit` tokens of context a result depends on its chunk."""

    codec = SimpleNamespace(encode=lambda text: range(len(text)))

    def __init__(self, max_model_len: int, limit: int) -> None:
        self.max_model_len, self.limit = max_model_len, limit
        self.cached: list[TokenIds] = []
        self.computed_tokens = 0

    async def draw(self, request: ExtendRequest, use_cache: bool) -> object:
        ids = request.token_ids
        found = [len(kept) for kept in self.cached if ids[: len(kept)] == kept] if use_cache else []
        chunk = len(ids) - max(found, default=0)
        self.cached.append(ids)
        self.computed_tokens += chunk
        return chunk if len(ids) > self.limit else 0


async def measure(monkeypatch: pytest.MonkeyPatch, engine: Any) -> int:
    def draw(of: Any, request: ExtendRequest, *, use_cache: bool = False) -> Any:
        return of.draw(request, use_cache)

    monkeypatch.setattr(batch_invariance, "draw_tokens", draw)
    return await batch_invariance._measure_invariant_context(engine, Turns())


@pytest.mark.parametrize(
    ("max_model_len", "limit", "found", "contexts"),
    [
        (16384, 10**6, 4096, 4096),
        (1024, 10**6, 1022, 1022),
        (16384, 700, 512, 1024),
        (16384, 0, 0, 128),
        (64, 10**6, 0, 0),
    ],
)
async def test_the_longest_equal_context_is_found_and_nothing_longer_than_the_first_other(
    monkeypatch: pytest.MonkeyPatch, max_model_len: int, limit: int, found: int, contexts: int
) -> None:
    engine = CachingEngine(max_model_len, limit)
    assert await measure(monkeypatch, engine) == found
    assert max((len(ids) for ids in engine.cached), default=0) == contexts
    assert engine.computed_tokens <= 8 * contexts


@pytest.mark.parametrize("part", batch_invariance.PREFIX_PARTS)
async def test_a_difference_behind_one_size_of_prefix_is_enough(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """As on AVX2: equal behind one share of the context, different behind another."""

    class OnlyBehind(CachingEngine):
        async def draw(self, request: ExtendRequest, use_cache: bool) -> object:
            chunk = len(request.token_ids) - len(request.token_ids) // part
            found = await super().draw(request, use_cache)
            return found if found == chunk else 0

    assert await measure(monkeypatch, OnlyBehind(1024, 600)) == 511


async def test_a_slow_machine_tests_no_longer_context(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(batch_invariance.time, "monotonic", lambda: 2.0 * next(clock))
    assert await measure(monkeypatch, CachingEngine(16384, 10**6)) == 128


async def test_log_probabilities_of_another_text_are_not_compared(monkeypatch: Any) -> None:
    numbers = itertools.count()

    async def draw(_: Any, request: ExtendRequest) -> tuple[list[int], list[float]]:
        if request.max_tokens == 1:
            return [3], [-1.5]
        is_alone = next(numbers) >= batch_invariance.BATCH
        return [1] * 5 + [2 if is_alone else 3] * 19, [-1.0] * 6 + [-9.0 if is_alone else -1.0] * 18

    monkeypatch.setattr(batch_invariance, "draw_tokens", draw)
    generator: Any = SimpleNamespace(codec=SimpleNamespace(encode_chat=lambda _: (1, 2)))
    found = await batch_invariance._compare_batches(generator, Turns())
    assert (found["batch_invariant"], found["max_logprob_difference"]) == (False, 0.5)
