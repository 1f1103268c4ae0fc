"""The order of submission reaches the engines, changes no tree, and saves KV if memory is tight.

The artifact has its prefix-aware order commented out: `test_the_engines_receive_…` would fail.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.engine.base import Chunk, ExtendRequest, Generator
from flashedge.runtime.drive.engines import Ordering
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.prefix_order import arrival_order, prefix_order, sweep_order
from flashedge.types import TokenIds
from scripts.bench.flashtts.orders import random_order, scattered_order, sum_shared
from scripts.lab.sim.clock import run_virtual
from tests.support.runtime_rig import BEAM, TIGHT, TINY, drive, driver_of, sim_engines
from tests.support.service_rig import Serve, ended
from tests.unit.runtime.drive.test_strategies import spec_of

WIDE = replace(BEAM, n=32, branching=2)


class RecordingGenerator:
    def __init__(self, inner: Generator) -> None:
        self._inner = inner
        self.requested: list[TokenIds] = []
        self.cached_tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self.requested.append(request.token_ids)
        async for chunk in self._inner.extend(request):
            self.cached_tokens += chunk.cached_tokens
            yield chunk


def build_tight_config(tokens: int) -> Any:
    kv_bytes = tokens * TINY.kv_bytes_per_token
    return replace(TIGHT, kv_bytes=kv_bytes, max_model_len=96)


async def count_cached(spec: Request, tokens: int, order: Ordering) -> tuple[int, int]:
    """Tokens of KV that generator and verifier reused."""
    engines = sim_engines(config=build_tight_config(tokens))
    generator: Any = RecordingGenerator(engines.generator)
    driver = driver_of(replace(engines, generator=generator, order=order), spec, lambda event: None)
    await driver.run()
    return generator.cached_tokens, driver.scoring.cached_tokens


def test_the_engines_receive_paths_in_prefix_order() -> None:
    async def record_levels(order: Ordering) -> list[int]:
        """What neighbours share in each level that the generator receives."""
        engines = sim_engines()
        generator: Any = RecordingGenerator(engines.generator)
        story = await drive(replace(engines, generator=generator, order=order), WIDE)
        depths = [node.depth for node in story.outcome.tree.nodes.values()][1:]
        found, at = [], 0
        for depth in range(1, max(depths) + 1):
            level = generator.requested[at : at + depths.count(depth)]
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
        runs = [
            run_virtual(count_cached(replace(WIDE, seed=seed), kv_tokens, order))
            for seed in range(5)
        ]
        return sum(g for g, _ in runs), sum(v for _, v in runs)

    swept, arrived = total(sweep_order), total(arrival_order)
    assert swept[0] > arrived[0]
    assert swept[1] > arrived[1]


# ---------------------------------------------------------------- the switch


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
