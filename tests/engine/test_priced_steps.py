"""The steps of deterministic requests, by the real scheduler and priced as on a card.

`scripts/bench/determinism/card.py` in small. Time is virtual, so it may be asserted.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.engine.vllm import compat
from scripts.bench.determinism.card import (
    build_engine,
    flag,
    make_jobs,
    measure_stall,
    write_checkpoint,
)
from scripts.bench.determinism.priced_engine import PricedEngine
from scripts.bench.flashtts.shapes import QWEN25_7B
from scripts.lab.sim.engine_loop import estimate_step_s


@pytest.fixture
def engine(tmp_path: Path) -> PricedEngine:
    compat.prepare_environment(1)
    return build_engine(QWEN25_7B, write_checkpoint(tmp_path), error_rate=0.01)


@pytest.mark.parametrize("percent", [0, 30, 100])
def test_every_request_gets_its_tokens(engine: PricedEngine, percent: int) -> None:
    served = engine.serve(flag(make_jobs(24, seed=1, rate_per_s=4.0), percent))
    assert all(len(job.token_s) == job.max_tokens for job in served.jobs)
    assert all(job.first_s > 0.0 for job in served.jobs)
    passes = served.counters["verify_passes"] + served.counters["prefill_passes"]
    assert bool(passes) == bool(percent)
    assert bool(served.counters["rollbacks"]) == bool(served.recomputed) == bool(percent)


def test_shared_steps_overlap_while_a_deterministic_request_is_open(engine: PricedEngine) -> None:
    """The host works for the next step while the card computes one, as without such a request."""
    jobs = make_jobs(24, seed=1)
    plain, overlapping, alone = (
        replace(engine, overlaps=overlaps, error_rate=0.0).serve(flag(jobs, percent)).makespan_s
        for overlaps, percent in ((True, 0), (True, 10), (False, 10))
    )
    assert plain < overlapping < alone


def test_others_wait_for_one_pass_beside_a_long_prompt(engine: PricedEngine) -> None:
    """Without the flag they wait for vLLM's chunk of 2,048 tokens."""
    found, long = measure_stall(engine, long=4096), 4096
    whole_pass, step = [(long, engine.shape.rows)], [(64 + 400, 1)] * 17
    pass_s, step_s = (
        estimate_step_s(engine.device, engine.model, batch) for batch in (whole_pass, step)
    )
    host_s = engine.host.overheads.step_s + 17 * engine.host.overheads.sequence_s
    bound_s = max(pass_s, engine.host.eager_s) + step_s + 2 * host_s
    assert found["none_most_ms"] < found["flagged_most_ms"] <= 1000 * bound_s
    assert found["flagged_most_ms"] < found["plain_most_ms"]
