"""The order of submission reaches the engines, changes no tree, and saves KV if memory is tight.

The artifact has its prefix-aware order commented out: `test_the_engines_receive_…` would fail.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.runtime.drive.engines import Engines, Ordering
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.prefix_order import arrival_order, prefix_order, sweep_order
from scripts.bench.flashtts.orders import random_order, scattered_order, sum_shared
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.pair import SimConfig
from tests.support.runtime_rig import (
    BEAM,
    CONFIG,
    MODEL,
    TIGHT,
    TINY,
    drive,
    driver_of,
    sim_engines,
)
from tests.support.service_rig import Serve, ended
from tests.support.speculation_rig import engines_with, get_generator
from tests.unit.runtime.drive.test_strategies import spec_of

WIDE = replace(BEAM, n=32, branching=2)


def build_tight_config(tokens: int) -> SimConfig:
    kv_bytes = tokens * TINY.kv_bytes_per_token
    return replace(TIGHT, kv_bytes=kv_bytes, max_model_len=96)


def build_engines(config: SimConfig, order: Ordering) -> Engines:
    return replace(engines_with(config, lookahead=False, model=MODEL), order=order)


async def count_cached(spec: Request, tokens: int, order: Ordering) -> tuple[int, int]:
    """Tokens of KV that generator and verifier reused."""
    engines = build_engines(build_tight_config(tokens), order)
    driver = driver_of(engines, spec, lambda event: None)
    await driver.run()
    generated = sum(chunk.cached_tokens for chunk in get_generator(engines).chunks)
    return generated, driver.scoring.cached_tokens


def test_the_engines_receive_paths_in_prefix_order() -> None:
    async def record_levels(order: Ordering) -> list[int]:
        """What neighbours share in each level that the generator receives."""
        engines = build_engines(CONFIG, order)
        story = await drive(engines, WIDE)
        requested = [request.token_ids for request in get_generator(engines).requests]
        depths = [node.depth for node in story.outcome.tree.nodes.values()][1:]
        found, at = [], 0
        for depth in range(1, max(depths) + 1):
            level = requested[at : at + depths.count(depth)]
            at += len(level)
            found.append(sum_shared(level, arrival_order(level)))
            best.append(sum_shared(level, prefix_order(level)))
        return found

    best: list[int] = []
    swept = run_virtual(record_levels(sweep_order))
    assert swept == best
    arrived = run_virtual(record_levels(arrival_order))
    assert len(arrived) == len(swept) > 2
    assert all(a <= s for a, s in zip(arrived, swept, strict=True))
    assert sum(arrived) < sum(swept)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["beam", "dvts", "rebase", "dynamic_branching", "best_of_n", "mcts"]),
    st.integers(1, 24),
    st.integers(0, 99),
    st.integers(96, 400),
)
def test_the_tree_is_one_in_any_order(strategy: str, n: int, seed: int, kv_tokens: int) -> None:
    spec = spec_of(strategy, n=n, seed=seed)

    async def run(order: Ordering) -> Any:
        engines = replace(sim_engines(config=build_tight_config(kv_tokens)), order=order)
        return (await drive(engines, spec)).outcome

    outcome = run_virtual(run(arrival_order))
    assert run_virtual(run(sweep_order)) == outcome
    assert run_virtual(run(scattered_order)) == outcome
    assert run_virtual(run(lambda paths: random_order(paths, Random(seed)))) == outcome


@pytest.mark.parametrize("kv_tokens", [160, 200, 256])
def test_a_sweep_reuses_more_of_a_tight_kv(kv_tokens: int) -> None:
    """Summed over several runs: a single one may be lucky."""

    def total(order: Ordering) -> tuple[int, int]:
        specs = [replace(WIDE, seed=seed) for seed in range(5)]
        runs = [run_virtual(count_cached(spec, kv_tokens, order)) for spec in specs]
        return sum(g for g, _ in runs), sum(v for _, v in runs)

    swept, arrived = total(sweep_order), total(arrival_order)
    assert swept[0] > arrived[0]
    assert swept[1] > arrived[1]


@pytest.mark.parametrize(
    ("on", "baseline", "order"),
    [(True, False, sweep_order), (False, False, arrival_order), (True, True, arrival_order)],
)
async def test_the_order_can_be_switched_off_and_baselines_have_none(
    serve: Serve, on: bool, baseline: bool, order: Ordering
) -> None:
    rig = await serve(features={"prefix_order": on})
    run = rig.service.submit(replace(BEAM, baseline=baseline))
    assert rig.engines_for(run).ordering is order
    assert await ended(run) == "finished"
