"""Parallel rollouts through the driver: the same tree under every optimization, and nothing left
behind whatever is cancelled."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.events import Event, NodesMarked, RolloutsEnded
from flashedge.optimizations import SWITCHES
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines, Ordering
from flashedge.runtime.request.strategies import find_defaults
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.prefix_order import order_by_arrival, order_by_prefix, order_by_sweep
from flashedge.search.mcts.rollouts import MctsState
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import NodeStatus
from scripts.bench.flashtts.orders import random_order, scattered_order, sum_shared
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.pair import Faults, SimConfig
from tests.support.runtime_rig import (
    BEAM,
    CONFIG,
    MODEL,
    TIGHT,
    TINY,
    assert_nothing_left,
    both,
    drive,
    drive_alike,
    driver_of,
    folded,
    nodes_of,
    sim_engines,
)
from tests.support.speculation_rig import drive_run, engines_with, get_generator, spec_for
from tests.unit.runtime.drive.test_strategies import spec_of
from tests.unit.runtime.kv.test_manager import alternate, managed_engines

MCTS = replace(BEAM, strategy="mcts", n=8, **find_defaults("mcts"))
OF_ENGINES = ("suffix_scoring", "kv_split", "offload")
"""Switches that choose other engines, or a KV manager."""
each_p = pytest.mark.parametrize("parallel", [1, 4])


def with_p(parallel: int, spec: Request = MCTS, **options: Any) -> Request:
    return replace(spec, options={"parallel": parallel, **options})


def irregular(problem: int, parallel: int, n: int = 8) -> Request:
    """Of a problem whose steps have very different lengths."""
    return with_p(parallel, spec_for(problem, strategy="mcts", n=n, **find_defaults("mcts")))


# ---------------------------------------------------------------- the same tree


@each_p
@pytest.mark.parametrize("switch", [s for s in SWITCHES if s not in OF_ENGINES])
async def test_no_switch_changes_the_tree(parallel: int, switch: str) -> None:
    for problem in range(3):
        outcomes = []
        for on in (False, True):
            switches = {switch: on, "speculation": on or switch != "speculation"}
            if switch == "early_scores":
                switches["lookahead"] = False
            engines = engines_with().switch(**switches)
            outcomes.append((await drive_run(engines, irregular(problem, parallel))).outcome)
            await assert_nothing_left(engines)
        assert outcomes[0] == outcomes[1]


@each_p
async def test_drafts_are_used(parallel: int) -> None:
    runs = [await drive_run(engines_with(), irregular(problem, parallel)) for problem in range(3)]
    assert sum(run.speculation.kept_tokens for run in runs) > 50


@each_p
async def test_moving_memory_changes_no_tree(parallel: int) -> None:
    async with managed_engines(forced=alternate) as here:
        await here.drive(with_p(parallel))
        assert here.manager.mover.offloads > 1
    async with managed_engines() as here:
        await here.drive(with_p(parallel))


async def test_the_same_tree_in_tight_kv_beside_others_and_over_a_dead_engine() -> None:
    faults = Faults(die_after_steps=frozenset({9}), restart_s=2.0)
    for engines in (sim_engines(config=TIGHT), sim_engines(generator=faults)):
        expected = await drive_alike(engines, with_p(4))
    engines, others = sim_engines(), [replace(BEAM, seed=seed) for seed in range(8)]
    stories = await asyncio.gather(*(drive(engines, s) for s in (with_p(4), *others)))
    assert stories[0].outcome == expected.outcome


async def test_more_rollouts_at_once_take_less_time() -> None:
    alone, four = [await drive_run(engines_with(), irregular(0, p, n=12)) for p in (1, 4)]
    assert four.seconds < 0.7 * alone.seconds


# ---------------------------------------------------------------- cancels


async def drive_with_allowances(
    engines: Engines, spec: Request, random: Random
) -> tuple[Outcome, list[Event], int]:
    told: list[Event] = []
    driver = driver_of(engines, spec, told.append)
    run = asyncio.ensure_future(driver.run())
    while not run.done():
        await asyncio.sleep(random.uniform(0.0, 0.004))
        driver.allow(random.choice([1, 2, 4, 7]))
    return await run, told, driver.cancelled_tokens


@pytest.mark.parametrize("switches", [{}, {"early_scores": True}], ids=["level", "early"])
async def test_a_cancel_at_any_time_leaks_nothing(
    switches: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = cancelled_tokens = 0
    states, run = list[MctsState](), Mcts.run

    def watch(self: Mcts, state: MctsState, commands: Any = ()) -> Any:
        moved = run(self, state, commands)
        states.append(moved[0])
        return moved

    monkeypatch.setattr(Mcts, "run", watch)
    for seed in range(12):
        spec, engines = with_p(4, replace(MCTS, seed=seed)), sim_engines().switch(**switches)
        outcome, told, tokens = await drive_with_allowances(engines, spec, Random(seed))
        cancelled_tokens += tokens
        assert all(len(state.flights) <= state.allowance for state in states)
        last = states[-1]
        states.clear()
        assert all(last.statistics[node].in_flight == 0 for node in outcome.tree.nodes)
        assert folded(told) == nodes_of(outcome.tree, spec)
        ends = [node for event in told if isinstance(event, RolloutsEnded) for node in event.nodes]
        assert tuple(ends) == last.rollouts
        marks = [event for event in told if isinstance(event, NodesMarked)]
        cancelled += sum(len(m.nodes) for m in marks if m.status == NodeStatus.CANCELLED)
        await assert_nothing_left(engines)
        assert not any(engine._jobs for engine in both(engines))
    assert cancelled > 25
    assert cancelled_tokens > 25


async def test_a_search_without_rollouts_ignores_allowances() -> None:
    expected = (await drive(sim_engines(), BEAM)).outcome
    driver = driver_of(sim_engines(), BEAM, lambda event: None)
    driver.allow(2)
    assert await driver.run() == expected


# ---------------------------------------------------------------- the order of submission


WIDE = replace(BEAM, n=32, branching=2)


def build_tight_config(tokens: int) -> SimConfig:
    return replace(TIGHT, kv_bytes=tokens * TINY.kv_bytes_per_token, max_model_len=96)


def build_engines(config: SimConfig, order: Ordering) -> Engines:
    return replace(engines_with(config, lookahead=False, model=MODEL), order=order)


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
            found.append(sum_shared(level, order_by_arrival(level)))
            best.append(sum_shared(level, order_by_prefix(level)))
        return found

    best: list[int] = []
    swept = run_virtual(record_levels(order_by_sweep))
    assert swept == best
    arrived = run_virtual(record_levels(order_by_arrival))
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

    def run(order: Ordering) -> Outcome:
        engines = replace(sim_engines(config=build_tight_config(kv_tokens)), order=order)
        return run_virtual(drive(engines, spec)).outcome

    outcome = run(order_by_arrival)
    for order in (order_by_sweep, scattered_order, lambda paths: random_order(paths, Random(seed))):
        assert run(order) == outcome
