"""Engines that vLLM spreads over two workers, here two processes on the CPU.

The workers exchange partial sums, so log-probabilities may differ in their last bits from those of
one process. The noise does not depend on the worker, and every worker draws the same tokens.

Each worker imports vLLM: the tests take about a minute on two idle cores.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest

from flashedge.engine.base import ScoreRequest
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.memory.engine_memory import count_path_bytes, estimate_forward
from flashedge.types import Problem
from tests.engine.conftest import PROBLEM, started
from tests.support.engine_rig import ask, drawn, generate_all

pytestmark = pytest.mark.long
WORKERS = 2
ASKED = Problem.from_text(PROBLEM)
SCORED = ScoreRequest(problem=ASKED, steps=("57 - 44 = 13\n\n", "13 * 2 = 26\n\n"))


def spread(options: EngineOptions) -> EngineOptions:
    return replace(options, cards=WORKERS, kv_bytes=64 << 20)


class SpreadPair(VllmPair):
    """The bundled pair with each engine on two workers."""

    def _build_options(self, *args: object) -> EngineOptions:
        return spread(super()._build_options(*args))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
async def spread_pair(pair: VllmPair) -> AsyncIterator[VllmPair]:
    async with started(SpreadPair(pair._pair, pair._config)) as engines:
        yield engines


def list_workers(pid: int) -> list[psutil.Process]:
    """The processes of vLLM's executor. Another child tracks their shared memory."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


async def test_two_workers_draw_the_tokens_of_one(pair: VllmPair, spread_pair: VllmPair) -> None:
    found = []
    for generator in (pair.generator, spread_pair.generator):
        requests = [ask(generator, ASKED, seed=seed, temperature=1.2) for seed in range(8)]
        found.append(drawn(await generate_all(generator, requests)))
    assert found[1] == found[0]
    assert len({token_ids for token_ids, _ in found[0]}) > 1, "the seeds make a difference"


async def test_two_workers_score_as_one(pair: VllmPair, spread_pair: VllmPair) -> None:
    one = await pair.verifier.score(SCORED)
    two = await spread_pair.verifier.score(SCORED)
    assert two.scores == pytest.approx(one.scores, abs=1e-4)


async def test_each_worker_holds_its_share_of_the_kv(spread_pair: VllmPair) -> None:
    shapes = find_pair_shapes(spread_pair._pair, spread_pair._config)
    for engine, shape in zip((spread_pair.generator, spread_pair.verifier), shapes, strict=True):
        view = await engine.view()
        assert view.block_bytes == count_path_bytes(shape, WORKERS, view.block_tokens)
        assert engine.health().kv_memory == "kept"
        assert len(list_workers(engine.health().pid)) == WORKERS


async def test_a_workers_step_holds_what_is_estimated(spread_pair: VllmPair) -> None:
    parts = await spread_pair.generator.measure_memory()
    shape = find_pair_shapes(spread_pair._pair, spread_pair._config)[0]
    width = shape.intermediate // WORKERS
    assert parts["forward"] == estimate_forward(4, 4096, shape.hidden, width, on_card=False)


async def test_an_engine_restarts_when_a_worker_dies(spread_pair: VllmPair) -> None:
    """Its other processes end with it."""
    verifier = spread_pair.verifier
    workers, live = list_workers(verifier.health().pid), verifier.process._live
    workers[1].kill()
    async with asyncio.timeout(60):
        await live._ended
    await verifier.wait_ready(60)
    assert verifier.health().restarts == 1
    assert (await verifier.score(SCORED)).scores
    _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 30)
    assert not alive
