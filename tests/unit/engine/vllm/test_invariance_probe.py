"""Which contexts the start-up self-test compares, on an engine that is a formula."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest
from flashedge.engine.self_test_turns import Turns, never_wait
from flashedge.engine.vllm import batch_invariance
from flashedge.types import TokenIds


class FormulaEngine:
    """Caches every prefix. Above `limit` tokens of context a result depends on its chunk."""

    def __init__(self, max_model_len: int, limit: int) -> None:
        self.max_model_len = max_model_len
        self.codec = SimpleNamespace(encode=lambda text: range(len(text)))
        self.limit = limit
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
    return await batch_invariance._measure_invariant_context(engine, Turns(never_wait))


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
    engine = FormulaEngine(max_model_len, limit)
    assert await measure(monkeypatch, engine) == found
    assert max((len(ids) for ids in engine.cached), default=0) == contexts
    assert engine.computed_tokens <= 8 * contexts


@pytest.mark.parametrize("part", batch_invariance.PREFIX_PARTS)
async def test_a_difference_behind_one_size_of_prefix_is_enough(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """As on AVX2: equal behind one share of the context, different behind another."""

    class OnlyBehind(FormulaEngine):
        async def draw(self, request: ExtendRequest, use_cache: bool) -> object:
            chunk = len(request.token_ids) - len(request.token_ids) // part
            found = await super().draw(request, use_cache)
            return found if found == chunk else 0

    assert await measure(monkeypatch, OnlyBehind(1024, 600)) == 511


async def test_a_slow_machine_tests_no_longer_context(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(batch_invariance.time, "monotonic", lambda: 2.0 * next(clock))
    assert await measure(monkeypatch, FormulaEngine(16384, 10**6)) == 128
