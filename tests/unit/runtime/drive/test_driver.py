"""The driver on simulated engines: its events tell the tree, faults of the engines change nothing,
and nothing is left of a run that is cut short."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flashedge.errors import EngineDead
from flashedge.events import EarlyExit, EngineRestarted, Progress, PromptRead
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import RTX_4090
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.types import STRATEGIES
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import (
    BEAM,
    BEST,
    CONFIG,
    Story,
    assert_nothing_left,
    drive,
    drive_alike,
    drive_alone,
    kinds,
    prompt_of,
    sim_engines,
)
from tests.unit.runtime.drive.test_strategies import BY_SCORE, BY_VOTE, spec_of

SPECS = pytest.mark.parametrize("spec", [BEAM, BEST], ids=lambda spec: spec.strategy)


# ---------------------------------------------------------------- to the end


async def test_open_ended_answers_are_grouped_as_texts() -> None:
    seen: list[Sequence[str | None]] = []

    class Texts:
        async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
            seen.append(answers)
            return ["the same"] * len(answers)

        async def close(self) -> None: ...

    engines = replace(sim_engines(), texts=Texts())
    story = await drive(engines, replace(BEST, answers="text"))
    (asked,) = seen
    assert len(asked) == BEST.n
    assert all(asked)
    (vote,) = story.outcome.finish.votes
    assert (vote.answer, vote.count) == ("the same", BEST.n)
    assert len((await drive(engines, BEST)).outcome.finish.votes) > 1
    assert len(seen) == 1


@SPECS
async def test_a_run_decides_level_by_level(spec: Request) -> None:
    story = await drive(sim_engines(), spec)
    depth = max(node.depth for node in story.outcome.tree.nodes.values())
    assert (depth > 1) is (spec is BEAM), "a best of n is one level"
    level = ["NodesExpanded", "StepCompleted", "NodeScored", "NodesMarked"]
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
            assert last[node] <= tokens <= len(segment.token_ids)
            last[node] = tokens


# ---------------------------------------------------------------- faults


@SPECS
@pytest.mark.parametrize(
    ("which", "steps"),
    [("generator", {1}), ("generator", {5}), ("generator", {11}), ("verifier", {1, 2})],
)
async def test_a_run_survives_engine_deaths(spec: Request, which: str, steps: set[int]) -> None:
    faults = {which: Faults(die_after_steps=frozenset(steps), restart_s=2.0)}
    told = (await drive_alike(sim_engines(**faults), spec)).list_events(EngineRestarted)
    assert [(e.engine, e.waited_s) for e in told] == [(which, pytest.approx(2.0))] * len(steps)


@pytest.mark.parametrize("restart_s", [None, 2000.0])
@pytest.mark.parametrize("which", ["generator", "verifier"])
async def test_an_engine_that_stays_away_ends_the_run(which: str, restart_s: float | None) -> None:
    faults = {which: Faults(die_after_steps=frozenset({2}), restart_s=restart_s)}
    engines = sim_engines(**faults)
    with pytest.raises(EngineDead):
        await drive(engines, BEAM)
    await assert_nothing_left(engines)


# ---------------------------------------------------------------- bounds


def assert_cut(story: Story) -> None:
    """Every node has a final status; the path shown is there."""
    tree, finish = story.outcome.tree, story.outcome.finish
    over = {NodeStatus.ACTIVE, NodeStatus.PRUNED, NodeStatus.DUPLICATE, NodeStatus.COMPLETE}
    for node in tree.nodes.values():
        assert node.status in over | {NodeStatus.CANCELLED}
        assert node.segment is None or node.status is not NodeStatus.CANCELLED
    assert finish.choice == ROOT or tree[finish.choice].segment is not None


@pytest.mark.parametrize("early", [False, True], ids=["by levels", "early"])
@pytest.mark.parametrize("of", [*map(spec_of, STRATEGIES), BY_VOTE, BY_SCORE])
async def test_a_deadline_cuts_the_run(of: Request, early: bool) -> None:
    """At any moment: the answer is made of what is there, and the engines are left at once."""
    cut = answered = 0
    for i in range(30):
        engines = sim_engines().switch(early_scores=early)
        story = await drive_alone(engines, replace(of, deadline_s=0.004 * (i + 1)))
        assert_cut(story)
        if of in (BY_VOTE, BY_SCORE):
            statuses = {node.status for node in story.outcome.tree.children(ROOT)}
            assert statuses <= {NodeStatus.COMPLETE, NodeStatus.CANCELLED}
        assert bool(story.list_events(EarlyExit)) == (story.outcome.cut_by is not None)
        if story.outcome.cut_by == "deadline":
            cut += 1
            answered += story.outcome.finish.answer is not None
    assert cut > 5
    assert answered or of.strategy != "beam"


async def test_a_deadline_holds_while_the_engine_restarts() -> None:
    faults = Faults(die_after_steps=frozenset({12}), restart_s=50.0)
    engines = sim_engines(generator=faults)
    story = await drive(engines, replace(BEAM, deadline_s=1.0))
    assert story.outcome.cut_by == "deadline"
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)
    assert_cut(story)
    assert story.outcome.finish.choice != ROOT


async def test_the_deadline_does_not_bind_a_run_that_ends() -> None:
    free = await drive(sim_engines(), BEAM)
    bounded = await drive(sim_engines(), replace(BEAM, deadline_s=1e5))
    assert bounded.outcome == free.outcome


@pytest.mark.parametrize("budget", [1, 60, 150])
async def test_a_token_budget_ends_at_a_level(budget: int) -> None:
    free = await drive(sim_engines(), BEAM)
    story = await drive_alone(sim_engines(), replace(BEAM, token_budget=budget))
    tree = story.outcome.tree
    deepest = max(node.depth for node in tree.nodes.values())
    before = sum(
        len(n.segment.token_ids) for n in tree.nodes.values() if n.depth < deepest and n.segment
    )
    assert before < budget <= tree.committed_tokens < free.outcome.tree.committed_tokens
    assert story.outcome.cut_by != "deadline"
    for node in tree.nodes.values():
        assert node.segment == free.outcome.tree[node.id].segment
    assert_cut(story)


# ---------------------------------------------------------------- cancel


async def cancel_after(engines: Engines, spec: Request, delay_s: float) -> bool:
    """Whether the run was still under way."""
    task = asyncio.create_task(drive(engines, spec))
    await asyncio.sleep(delay_s)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.parametrize("spec", [BEAM, BEST, BY_VOTE, BY_SCORE])
@pytest.mark.parametrize("early", [False, True], ids=["by levels", "early"])
async def test_a_cancelled_run_leaves_nothing(spec: Request, early: bool) -> None:
    expected = await drive(sim_engines(), spec)
    engines = sim_engines().switch(early_scores=early)
    began = asyncio.get_running_loop().time()
    await drive(engines, spec)
    whole_s = asyncio.get_running_loop().time() - began
    draw, cancelled = random.Random(5), 0
    for _ in range(60):
        cancelled += await cancel_after(engines, spec, draw.random() * whole_s)
        await assert_nothing_left(engines)
    assert cancelled >= 50
    assert (await drive(engines, spec)).outcome == expected.outcome


async def test_a_run_is_cancelled_while_the_engine_restarts() -> None:
    engines = sim_engines(generator=Faults(die_after_steps=frozenset({3}), restart_s=9.0))
    assert await cancel_after(engines, BEAM, 4.0)
    await assert_nothing_left(engines)
