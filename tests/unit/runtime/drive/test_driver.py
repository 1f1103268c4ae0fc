"""The driver on simulated engines: its events tell the tree, faults of the engines change nothing.

Bounds and cancellation are in test_driver_cuts.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flashedge.errors import EngineDead, GenerationFailed
from flashedge.events import EngineRestarted, Event, Progress, PromptRead
from flashedge.runtime.request.request import Request
from flashedge.scheduling.costs import RTX_4090
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import (
    BEAM,
    BEST,
    CONFIG,
    TIGHT,
    assert_nothing_left,
    both,
    drive,
    drive_alike,
    driver_of,
    folded,
    kinds,
    nodes_of,
    prompt_of,
    sim_engines,
)

SPECS = pytest.mark.parametrize("spec", [BEAM, BEST], ids=lambda spec: spec.strategy)


# ---------------------------------------------------------------- to the end


async def test_open_ended_answers_are_grouped_as_texts() -> None:
    class First:
        def __init__(self) -> None:
            self.asked: list[Sequence[str | None]] = []

        async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
            self.asked.append(answers)
            return ["the same"] * len(answers)

        async def close(self) -> None: ...

    texts = First()
    story = await drive(replace(sim_engines(), texts=texts), replace(BEST, answers="text"))
    assert [len(asked) for asked in texts.asked] == [BEST.n]
    assert all(texts.asked[0])
    (vote,) = story.outcome.finish.votes
    assert (vote.answer, vote.count) == ("the same", BEST.n)
    boxed = await drive(replace(sim_engines(), texts=texts), BEST)
    assert len(texts.asked) == 1
    assert len(boxed.outcome.finish.votes) > 1


async def test_a_best_of_n_is_one_level() -> None:
    story = await drive(sim_engines(), BEST)
    level = ["NodesMarked", "NodesExpanded", "PromptRead", "StepCompleted", "NodeScored"]
    assert kinds(story.events) == [*level, "NodesMarked", "CertaintyUpdated"]


async def test_a_beam_decides_level_by_level() -> None:
    story = await drive(sim_engines(), BEAM)
    level = ["NodesExpanded", "StepCompleted", "NodeScored", "NodesMarked"]
    depth = max(node.depth for node in story.outcome.tree.nodes.values())
    assert depth > 1
    first = ["NodesMarked", "NodesExpanded", "PromptRead", *level[1:]]
    assert kinds(story.events) == [*first, *level * (depth - 1), "CertaintyUpdated"]


async def test_a_run_tells_what_its_first_request_found_in_the_cache() -> None:
    engines = sim_engines(config=replace(CONFIG, block_tokens=4))
    tokens = len(prompt_of(engines, BEAM))
    stories = [await drive(engines, BEAM) for _ in range(2)]
    found = [story.list_events(PromptRead) for story in stories]
    whole_blocks = (tokens - 1) // 4 * 4
    assert found == [
        [PromptRead(tokens=tokens, cached_tokens=0)],
        [PromptRead(tokens=tokens, cached_tokens=whole_blocks)],
    ]
    assert whole_blocks


async def test_progress_counts_up_to_the_step() -> None:
    spec = replace(BEST, n=2)
    slow = replace(CONFIG, device=replace(RTX_4090, overhead_s=0.03))
    story = await drive(sim_engines(config=slow), spec)
    tree, last = story.outcome.tree, dict.fromkeys((1, 2), 0)
    assert len(story.list_events(Progress)) >= 5
    for event in story.list_events(Progress):
        for node, tokens in event.tokens:
            segment = tree[node].segment
            assert segment is not None
            assert last[node] <= tokens <= len(segment.token_ids)
            last[node] = tokens


async def test_two_runs_at_once_build_the_trees_of_two_in_turn() -> None:
    specs = [BEAM, replace(BEST, n=16), replace(BEAM, seed=99, n=16)]
    alone = [await drive(sim_engines(), spec) for spec in specs]
    engines = sim_engines(config=TIGHT)
    together = await asyncio.gather(*(drive(engines, spec) for spec in specs))
    assert (await engines.generator.view()).preemptions > 0
    for story, expected, spec in zip(together, alone, specs, strict=True):
        assert story.outcome == expected.outcome
        assert folded(story.events) == nodes_of(expected.outcome.tree, spec)
    await assert_nothing_left(engines)


async def test_the_clocks_and_counters_add_up() -> None:
    engines = sim_engines()
    events: list[Event] = []
    driver = driver_of(engines, BEAM, events.append)
    began = asyncio.get_running_loop().time()
    await driver.run()
    took_s = asyncio.get_running_loop().time() - began
    assert 0 < driver.scoring.waiting.seconds < driver.generating.seconds
    assert driver.generating.seconds + driver.scoring.waiting.seconds == pytest.approx(took_s)
    assert 0 < driver.scoring.cached_tokens < driver.scoring.tokens


# ---------------------------------------------------------------- faults


@SPECS
@pytest.mark.parametrize("step", [1, 5, 11])
async def test_a_run_survives_the_generators_death(spec: Request, step: int) -> None:
    engines = sim_engines(generator=Faults(die_after_steps=frozenset({step}), restart_s=2.0))
    (told,) = (await drive_alike(engines, spec)).list_events(EngineRestarted)
    assert (told.engine, told.waited_s) == ("generator", pytest.approx(2.0))


@SPECS
async def test_a_run_survives_the_verifiers_death(spec: Request) -> None:
    engines = sim_engines(verifier=Faults(die_after_steps=frozenset({1, 2}), restart_s=3.0))
    story = await drive_alike(engines, spec)
    assert [e.engine for e in story.list_events(EngineRestarted)] == ["verifier"] * 2
    assert engines.verifier.health().restarts == 2


async def test_a_run_survives_the_death_of_both_engines() -> None:
    expected = await drive(sim_engines(), BEAM)
    engines = sim_engines()
    running = asyncio.create_task(drive(engines, BEAM))
    for delay_s in (0.02, 2.02):
        await asyncio.sleep(delay_s)
        for engine in both(engines):
            engine.kill()
    story = await running
    assert story.outcome == expected.outcome
    assert len(story.list_events(EngineRestarted)) == 2  # of the engine that was at work
    assert [engine.health().restarts for engine in both(engines)] == [2, 2]
    await assert_nothing_left(engines)


@pytest.mark.parametrize("restart_s", [None, 2000.0])
@pytest.mark.parametrize("which", ["generator", "verifier"])
async def test_an_engine_that_does_not_come_back_ends_the_run(
    which: str, restart_s: float | None
) -> None:
    faults = {which: Faults(die_after_steps=frozenset({2}), restart_s=restart_s)}
    engines = sim_engines(**faults)
    with pytest.raises(EngineDead):
        await drive(engines, BEAM)
    await assert_nothing_left(engines)


@pytest.mark.parametrize("failing", [{0}, {3}, {0, 8}, {0, 1, 2, 3, 4, 5, 6, 7}])
async def test_a_failed_request_is_repeated(failing: set[int]) -> None:
    engines = sim_engines(generator=Faults(fail_requests=frozenset(failing)))
    assert not (await drive_alike(engines, BEAM)).list_events(EngineRestarted)


async def test_a_request_that_fails_three_times_ends_the_run() -> None:
    """Requests 0-7 are the first level's; a failed one comes back behind them."""
    engines = sim_engines(generator=Faults(fail_requests=frozenset({2, 8, 9})))
    with pytest.raises(GenerationFailed, match="request 9 failed"):
        await drive(engines, BEAM)
    await assert_nothing_left(engines)
