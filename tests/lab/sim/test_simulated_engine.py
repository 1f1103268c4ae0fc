"""The simulated engines: the engine contract, and what only they have: virtual time and faults."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from flashedge.engine.base import ScoreRequest
from flashedge.errors import ConfigError, EngineDead, GenerationFailed, RequestError
from flashedge.scheduling.costs import RTX_4090
from flashedge.types import FinishReason, Problem
from scripts.bench.flashtts.shapes import QWEN25_1_5B
from scripts.lab.sim.clock import VirtualTimePolicy
from scripts.lab.sim.engine_loop import estimate_step_s
from scripts.lab.sim.model import SimModel, StepTrace
from scripts.lab.sim.pair import (
    Faults,
    SimConfig,
    SimulatedGenerator,
    SimulatedVerifier,
    simulated_pair,
)
from tests.contracts.engine_contract import GeneratorContract, OffloadContract, VerifierContract
from tests.support.engine_rig import ask, generate, score_by_steps, settle, some_steps
from tests.support.paths import DATA

TRACE = StepTrace.read(DATA / "step_lengths_small.jsonl")
MODEL = SimModel(TRACE)
SMALL = SimConfig(
    shape=QWEN25_1_5B,
    kv_bytes=4096 * QWEN25_1_5B.kv_bytes_per_token,
    max_model_len=1024,
    max_num_seqs=32,
    max_batched_tokens=256,
)


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


@pytest.fixture
def problem() -> Problem:
    return TRACE.problem(0)


TIGHT = replace(
    SMALL,
    block_tokens=4,
    kv_bytes=1280 * QWEN25_1_5B.kv_bytes_per_token,
    max_model_len=640,
    max_num_seqs=12,
    max_batched_tokens=24,
    stream_interval=5,
)
"""Few blocks, short batches and long chunks."""


@pytest.fixture
def generator() -> SimulatedGenerator:
    return SimulatedGenerator(SMALL, MODEL)


@pytest.fixture
def verifier() -> SimulatedVerifier:
    return SimulatedVerifier(SMALL)


def fill(tokens: int) -> Problem:
    """A problem whose prompt has this many tokens."""
    return Problem.from_text(" ".join(f"word{i}" for i in range(tokens - 2)))


class TestGenerator(GeneratorContract):
    pass


class TestOffload(OffloadContract):
    pass


class TestVerifier(VerifierContract):
    pass


class TestTightGenerator(GeneratorContract):
    @pytest.fixture
    def generator(self) -> SimulatedGenerator:
        return SimulatedGenerator(TIGHT, MODEL)


class TestTightVerifier(VerifierContract):
    @pytest.fixture
    def verifier(self) -> SimulatedVerifier:
        return SimulatedVerifier(TIGHT)


def test_the_kv_must_hold_one_request_of_full_length() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 4097"):
        SimulatedVerifier(replace(SMALL, max_model_len=4097))


# ---------------------------------------------------------------- time


async def test_a_step_takes_its_estimated_time(
    generator: SimulatedGenerator, problem: Problem
) -> None:
    loop = asyncio.get_running_loop()
    request = ask(generator, problem, max_tokens=10)
    await generate(generator, request)
    assert generator.steps == 10
    assert "(simulated)" in repr(generator)
    assert loop.time() == pytest.approx(generator.busy_s)
    shares = [(0, len(request.token_ids))]
    shares += [(len(request.token_ids) + i, 1) for i in range(9)]
    alone_s = sum(estimate_step_s(RTX_4090, QWEN25_1_5B, [share]) for share in shares)
    assert generator.busy_s == pytest.approx(alone_s)


async def test_long_prompts_are_prefilled_in_chunks(generator: SimulatedGenerator) -> None:
    await generate(generator, ask(generator, fill(602), max_tokens=1))
    assert generator.steps == 3  # at most 256 a step


@pytest.mark.parametrize("overhead_s", [0.0, 0.01])
async def test_engines_of_one_device_take_turns(problem: Problem, overhead_s: float) -> None:
    """What a step takes on the host leaves the device to the other engine."""
    kv_bytes, device = 2 * SMALL.kv_bytes, replace(RTX_4090, overhead_s=overhead_s, sequence_s=0.0)
    generator, verifier = simulated_pair(
        MODEL, QWEN25_1_5B, QWEN25_1_5B, kv_bytes=kv_bytes, device=device
    )
    scoring = score_by_steps(verifier, problem, some_steps(16))
    await asyncio.gather(generate(generator, ask(generator, problem)), scoring)
    took_s = asyncio.get_running_loop().time()
    busy_s = generator.busy_s + verifier.busy_s
    assert (took_s < 0.99 * busy_s) if overhead_s else (took_s == pytest.approx(busy_s))


async def test_a_chunk_holds_an_interval(problem: Problem) -> None:
    generator = SimulatedGenerator(replace(SMALL, stream_interval=16), MODEL)
    async with aclosing(generator.extend(ask(generator, problem))) as chunks:
        assert [len(chunk.token_ids) async for chunk in chunks] == [16, 16, 8]


# ---------------------------------------------------------------- memory and order


async def test_forks_share_their_prefix(generator: SimulatedGenerator) -> None:
    requests = [ask(generator, fill(100), seed=s, max_tokens=10) for s in range(8)]  # 6 blocks, 4
    tasks = [asyncio.create_task(generate(generator, r)) for r in requests]
    await asyncio.sleep(1e-6)
    view = await generator.view()
    assert view.running == 8
    assert view.blocks_used == 6 + 8
    outcomes = await asyncio.gather(*tasks)
    assert [o.cached_tokens for o in outcomes] == [0] + [96] * 7
    request = ask(generator, fill(96), max_tokens=1)  # 6 blocks
    await generate(generator, request)
    assert (await generate(generator, request)).cached_tokens == 80  # the last is never cached


async def test_a_smaller_quota_preempts_at_once(
    generator: SimulatedGenerator, problem: Problem
) -> None:
    requests = [ask(generator, problem, seed=seed, max_tokens=200) for seed in range(8)]
    tasks = [asyncio.create_task(generate(generator, request)) for request in requests]
    await asyncio.sleep(0.9)
    busy = await generator.view()
    longest = SMALL.max_model_len // busy.block_tokens
    assert busy.blocks_used > longest
    await generator.budget(0)
    view = await generator.view()
    assert view.blocks_used <= view.quota_blocks == longest
    assert view.preemptions > 0
    await asyncio.gather(*tasks)
    await settle(generator)


async def test_reuse_stops_before_the_first_requested_score(
    verifier: SimulatedVerifier, problem: Problem
) -> None:
    """A score exists only where its row is computed, so KV is reused up to there at most."""
    steps = some_steps(64)
    parts = await score_by_steps(verifier, problem, steps)
    again = await verifier.score(ScoreRequest(problem=problem, steps=steps))
    assert again.cached_tokens == (parts[0].tokens - 1) // 16 * 16
    whole = await verifier.score_whole(ScoreRequest(problem=problem, steps=steps))
    assert whole.cached_tokens == 0
    assert whole.scores == again.scores
    with pytest.raises(RequestError, match="num_scored is 5"):
        await verifier.score(ScoreRequest(problem=problem, steps=steps, num_scored=5))


# ---------------------------------------------------------------- faults


async def test_a_death_ends_all_requests_and_a_restart_serves_again(problem: Problem) -> None:
    faults = Faults(die_after_steps=frozenset({5}), restart_s=3.0)
    generator = SimulatedGenerator(SMALL, MODEL, faults=faults)
    requests = [ask(generator, problem, seed=seed) for seed in range(4)]
    ends = await asyncio.gather(*(generate(generator, r) for r in requests), return_exceptions=True)
    assert all(isinstance(end, EngineDead) for end in ends)
    assert generator.health().state == "dead"
    await settle(generator)
    with pytest.raises(EngineDead):
        await generate(generator, requests[0])
    with pytest.raises(EngineDead, match="not ready within 1 s"):
        await generator.wait_ready(1.0)
    died_at = generator.busy_s
    await generator.wait_ready(10.0)
    assert asyncio.get_running_loop().time() == pytest.approx(died_at + 3.0)
    assert generator.health().state == "ready"
    assert generator.health().restarts == 1
    unharmed = SimulatedGenerator(SMALL, MODEL)
    again = await generate(generator, requests[0])
    assert again == await generate(unharmed, requests[0])  # nothing is cached either


async def test_a_single_request_may_fail(problem: Problem) -> None:
    generator = SimulatedGenerator(SMALL, MODEL, faults=Faults(fail_requests=frozenset({1})))
    requests = [ask(generator, problem, seed=seed) for seed in range(3)]
    ends = await asyncio.gather(*(generate(generator, r) for r in requests), return_exceptions=True)
    assert [isinstance(end, GenerationFailed) for end in ends] == [False, True, False]
    await settle(generator)
    assert (await generate(generator, requests[1])).finish is FinishReason.STEP_LIMIT
