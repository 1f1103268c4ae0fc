"""The event-driven simulation gives the times of the stepwise one, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.models.shape import ModelShape
from scripts.lab.benchmark.requests.event_driven import (
    FixedOrder,
    Floats,
    Integers,
    RequestCase,
    ServedCase,
    WaitingOrder,
    order_by_arrival,
    serve_by_events,
    sort_waiting,
)
from scripts.lab.sim.blocks import BlockCache
from scripts.lab.sim.engine_loop import SimConfig
from scripts.lab.sim.scheduler import SimScheduler, SimSequence
from scripts.lab.sim.step_cost import estimate_step_s

SHAPE = ModelShape(name="tiny", params=2**28, layers=4, heads=4, kv_heads=2, head_dim=64)
CONFIG = SimConfig(
    shape=SHAPE,
    kv_bytes=SHAPE.kv_bytes_per_token * 16 * 64,
    max_model_len=512,
    max_num_seqs=8,
    max_batched_tokens=128,
)


def serve_stepwise(case: RequestCase, config: SimConfig, order: WaitingOrder) -> ServedCase:
    """Step by step, with the scheduler of the simulated engines: the waiting queue is
    sorted when a request arrives, ends or is preempted."""
    scheduler = SimScheduler(
        BlockCache(config.kv_bytes // config.block_bytes, config.block_tokens, reuse=False),
        longest_tokens=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
    )
    count = len(case)
    started_s, first_s, finished_s = (np.full(count, np.nan) for _ in range(3))
    drawn = np.zeros(count, dtype=np.int64)
    now_s, arrived, left, steps = 0.0, 0, count, 0
    is_stale = True
    while left:
        while arrived < count and case.arrived_s[arrived] <= now_s:
            scheduler.add(
                SimSequence(
                    id=arrived, tokens=[0] * int(case.prompt_tokens[arrived]), program=str(arrived)
                )
            )
            arrived, is_stale = arrived + 1, True
        if not scheduler.running and not scheduler.waiting:
            now_s = float(case.arrived_s[arrived])
            continue
        if is_stale and scheduler.waiting and len(scheduler.running) < config.max_num_seqs:
            waiting = np.array(sorted(s.id for s in scheduler.waiting), dtype=np.int64)
            scheduler.rank_programs([str(i) for i in sort_waiting(order, waiting, now_s)])
            is_stale = False
        preemptions = scheduler.preemptions
        batch = scheduler.plan()
        is_stale |= scheduler.preemptions > preemptions
        for work in batch:
            if np.isnan(started_s[work.sequence.id]):
                started_s[work.sequence.id] = now_s
        now_s += estimate_step_s(config.device, config.shape, batch)
        steps += 1
        for work in batch:
            if not scheduler.complete(work):
                continue
            sequence = work.sequence
            if not drawn[sequence.id]:
                first_s[sequence.id] = now_s
            drawn[sequence.id] += 1
            sequence.tokens.append(0)
            if drawn[sequence.id] == case.output_tokens[sequence.id]:
                scheduler.remove(sequence)
                finished_s[sequence.id] = now_s
                left, is_stale = left - 1, True
    return ServedCase(
        started_s=started_s,
        first_token_s=first_s,
        finished_s=finished_s,
        steps=steps,
        preemptions=scheduler.preemptions,
    )


@dataclass(frozen=True)
class Impatient:
    """An order that changes with time and with the number of those that wait."""

    arrived_s: Floats
    lengths: Integers

    def score(self, waiting: Integers, now_s: float) -> Floats:
        weight = 1.0 / (1 + len(waiting))
        waits = np.floor((now_s - self.arrived_s[waiting]) / 0.05)
        return self.lengths[waiting] * weight * 0.5**waits + self.lengths[waiting] % 7


def draw_case(seed: int, requests: int, rate: float, longest: int = 200) -> RequestCase:
    draw = np.random.default_rng(seed)
    return RequestCase(
        arrived_s=np.cumsum(draw.exponential(1 / rate, requests)),
        prompt_tokens=draw.integers(1, 300, requests),
        output_tokens=draw.integers(1, longest, requests),
    )


def list_orders(case: RequestCase) -> list[WaitingOrder]:
    return [
        order_by_arrival(len(case)),
        FixedOrder(scores=case.output_tokens.astype(float)),
        Impatient(case.arrived_s, case.output_tokens),
    ]


def check_equal(case: RequestCase, config: SimConfig) -> int:
    """Compare both ways under three orders. Returns the preemptions that happened."""
    preemptions = 0
    for order in list_orders(case):
        naive, fast = serve_stepwise(case, config, order), serve_by_events(case, config, order)
        for name in ("started_s", "first_token_s", "finished_s"):
            assert np.array_equal(getattr(naive, name), getattr(fast, name)), name
        assert not np.isnan(fast.finished_s).any()
        assert (fast.started_s >= case.arrived_s).all()
        assert (naive.steps, naive.preemptions) == (fast.steps, fast.preemptions)
        preemptions += naive.preemptions
    return preemptions


@pytest.mark.parametrize("rate", [2.0, 40.0, 1000.0])
def test_with_ample_memory(rate: float) -> None:
    ample = replace(CONFIG, kv_bytes=SHAPE.kv_bytes_per_token * 16 * 1000)
    assert check_equal(draw_case(1, 60, rate), ample) == 0


@pytest.mark.parametrize("rate", [40.0, 1000.0])
def test_with_scarce_memory_that_preempts(rate: float) -> None:
    assert check_equal(draw_case(2, 60, rate), CONFIG) > 0


def test_with_long_prompts_in_chunks() -> None:
    case = draw_case(3, 40, 100.0)
    long = replace(case, prompt_tokens=case.prompt_tokens + 100)
    check_equal(long, replace(CONFIG, max_batched_tokens=48, max_model_len=1024))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    requests=st.integers(1, 24),
    rate=st.sampled_from([1.0, 30.0, 300.0]),
    blocks=st.integers(32, 80),
    places=st.integers(1, 9),
    room=st.integers(9, 200),
)
def test_of_any_load(
    seed: int, requests: int, rate: float, blocks: int, places: int, room: int
) -> None:
    config = replace(
        CONFIG,
        kv_bytes=SHAPE.kv_bytes_per_token * 16 * blocks,
        max_num_seqs=places,
        max_batched_tokens=room,
    )
    check_equal(draw_case(seed, requests, rate), config)


def test_what_does_not_fit_is_refused() -> None:
    case = draw_case(4, 4, 10.0)
    for config in (
        replace(CONFIG, max_model_len=100),
        replace(CONFIG, kv_bytes=SHAPE.kv_bytes_per_token * 16 * 4),
        replace(CONFIG, max_num_seqs=200, max_batched_tokens=100),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            serve_by_events(case, config, order_by_arrival(len(case)))
    with pytest.raises(ValueError, match="order of their arrival"):
        replace(case, arrived_s=case.arrived_s[::-1])
    with pytest.raises(ValueError, match="at least one token"):
        replace(case, output_tokens=case.output_tokens * 0)


def test_shortest_first_beats_arrival_under_overload() -> None:
    case = draw_case(5, 200, 1000.0)
    by_arrival = serve_by_events(case, CONFIG, order_by_arrival(len(case)))
    by_length = serve_by_events(case, CONFIG, FixedOrder(scores=case.output_tokens.astype(float)))
    ratio = (
        by_arrival.build_timings(case).per_token_s.mean()
        / by_length.build_timings(case).per_token_s.mean()
    )
    assert ratio > 2
