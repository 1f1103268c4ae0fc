"""Lengths of paths from a run's events: every strategy, cuts, cancels, and stored runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.events import Progress, RunStarted, StepCompleted
from flashedge.runtime.lengths.path_counter import PathCounter, count_outline
from flashedge.runtime.lengths.predictions import iter_newest, read_run
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.lengths.outputs import OutputLengths
from flashedge.types import FinishReason, NodeId
from tests.support.runtime_rig import BEAM, BEST, Story, drive, sim_engines

SAMPLES = replace(BEST, strategy="self_consistency")


def count(story: Story, *, sees_progress: bool = True) -> OutputLengths:
    counter = PathCounter(sees_progress=sees_progress)
    for event in story.events:
        counter.observe(event)
    lengths = counter.count()
    assert lengths is not None
    return lengths


def count_ended(lengths: OutputLengths) -> Counter[int]:
    """How many outputs of each length the model ended."""
    points = zip(lengths.tokens, lengths.is_censored, lengths.weights, strict=True)
    return Counter({tokens: round(weight) for tokens, is_cut, weight in points if not is_cut})


async def test_sampled_paths_count_once_each() -> None:
    story = await drive(sim_engines(), SAMPLES)
    lengths = count(story)
    nodes = story.outcome.tree.nodes.values()
    true = Counter(n.path_tokens for n in nodes if n.segment and n.segment.finish.ends_path)
    assert count_ended(lengths) == true
    assert not any(lengths.is_censored)
    assert lengths.num_outputs == SAMPLES.n


@pytest.mark.parametrize("strategy", ["beam", "dvts", "mcts", "rebase"])
async def test_a_trees_weights_add_up_to_its_first_steps(strategy: str) -> None:
    story = await drive(sim_engines(), replace(BEAM, strategy=strategy))
    lengths = count(story, sees_progress=False)
    nodes = story.outcome.tree.nodes.values()
    first = [n for n in nodes if n.parent == 0 and n.segment]
    assert lengths.num_outputs == pytest.approx(len(first))
    ends = [n for n in nodes if n.segment and n.segment.finish is FinishReason.STOP]
    assert count_ended(lengths) == Counter(n.path_tokens for n in ends)


async def test_a_limit_cuts_paths() -> None:
    story = await drive(sim_engines(), replace(SAMPLES, max_path_tokens=20))
    lengths = count(story)
    cut = {
        t for t, is_censored in zip(lengths.tokens, lengths.is_censored, strict=True) if is_censored
    }
    assert cut == {20}
    assert lengths.num_outputs == SAMPLES.n


def feed(*, sees_progress: bool) -> OutputLengths | None:
    """Three samples; one ended, one was cancelled at 70 tokens, one had not begun."""
    counter = PathCounter(sees_progress=sees_progress)
    counter.expand(NodeId(0), [NodeId(1), NodeId(2), NodeId(3)])
    counter.complete(NodeId(1), 40, "stop")
    if sees_progress:
        counter.observe(Progress(tokens=((NodeId(1), 30), (NodeId(2), 55))))
        counter.observe(Progress(tokens=((NodeId(2), 70),)))
    return counter.count()


def test_a_cancelled_path_is_a_lower_bound_where_its_progress_was_seen() -> None:
    """Without it the quick siblings are left out, too."""
    assert feed(sees_progress=True) == OutputLengths(
        tokens=(40, 70), is_censored=(False, True), weights=(1.0, 1.0)
    )
    assert feed(sees_progress=False) is None


def test_later_steps_alone_are_no_outputs() -> None:
    counter = PathCounter(sees_progress=False)
    counter.expand(NodeId(0), [NodeId(1), NodeId(2)])
    counter.complete(NodeId(1), 40, "boundary")  # its sibling was cancelled
    counter.expand(NodeId(1), [NodeId(3)])
    counter.complete(NodeId(3), 10, "stop")
    assert counter.count() is None
    counter.complete(NodeId(2), 30, "stop")
    assert counter.count() == OutputLengths(
        tokens=(30, 50), is_censored=(False, False), weights=(1.0, 1.0)
    )


# ---------------------------------------------------------------- stored runs


def keep(store: RunStore, run_id: str, spec: Request, story: Story, at: float) -> None:
    store.create(run_id, spec.to_json(), at)
    events = [RunStarted(config=spec.to_json(), queue_s=0.0), *story.events]
    kept = [event for event in events if not isinstance(event, Progress)]
    for number, event in enumerate(kept, 1):
        store.append(run_id, number, event)
    store.finish(run_id, "finished", {"usage": {"prompt_tokens": 8}}, None, at)


@pytest.mark.parametrize("strategy", ["self_consistency", "beam", "mcts"])
async def test_a_stored_run_counts_as_a_live_one(tmp_path: Path, strategy: str) -> None:
    spec = replace(BEAM, strategy=strategy)
    story = await drive(sim_engines(), spec)
    store = RunStore(tmp_path / "runs.sqlite")
    keep(store, "run-1", spec, story, 5.0)
    outline = store.outline("run-1")
    assert outline.prompt_tokens == 8
    assert count_outline(outline) == count(story, sees_progress=False)
    steps = sum(isinstance(event, StepCompleted) for event in story.events)
    assert len(outline.steps) == steps
    (stored,) = iter_newest(store, 0.0)
    finished = read_run(store, stored)
    assert finished is not None
    assert finished.request.num_prompt_tokens == 8
    assert finished.request.kind == strategy
    assert finished.request.text == "user: How many are left?"
    store.close()


async def test_runs_that_are_over_are_read_newest_first(tmp_path: Path) -> None:
    story = await drive(sim_engines(), SAMPLES)
    store = RunStore(tmp_path / "runs.sqlite")
    for number in range(6):
        keep(store, f"run-{number}", replace(SAMPLES, seed=number), story, number)
    store.create("run-open", SAMPLES.to_json(), 9.0)
    store.create("run-odd", {"problem": "of another version"}, 9.5)
    store.finish("run-odd", "failed", None, {}, 9.5)
    odd, *others = iter_newest(store, 4.0)
    assert read_run(store, odd) is None
    assert [stored.id for stored in others] == ["run-5", "run-4"]
    assert len([*iter_newest(store, 0.0)]) == 7
    store.close()


def test_an_unknown_run_has_an_empty_outline(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.sqlite")
    outline = store.outline("run-none")
    assert (outline.levels, outline.steps, outline.prompt_tokens) == ((), (), None)
    assert count_outline(outline) is None
    store.close()


def grow(*levels: tuple[int, list[tuple[int, int, FinishReason]]]) -> PathCounter:
    """A counter of a tree: of each level its parent, and its nodes with their tokens and ends."""
    counter = PathCounter(sees_progress=True)
    for parent, children in levels:
        counter.expand(NodeId(parent), [NodeId(node) for node, _, _ in children])
        for node, tokens, finish in children:
            counter.complete(NodeId(node), tokens, finish)
    return counter


def test_paths_hold_what_they_share_once() -> None:
    """Two paths of 10 tokens share 8: at their last level 12 of 20 tokens are held."""
    step, end = FinishReason.BOUNDARY, FinishReason.STOP
    counter = grow((0, [(1, 8, step), (2, 3, step)]), (1, [(3, 2, end), (4, 2, end)]))
    assert counter.measure_kv_share(2) == pytest.approx(12 / 20)


async def test_sampled_paths_share_nothing_and_beams_do() -> None:
    found = []
    for spec in (SAMPLES, replace(BEAM, n=16)):
        counter = PathCounter(sees_progress=True)
        for event in (await drive(sim_engines(), spec)).events:
            counter.observe(event)
        found.append(counter.measure_kv_share(spec.n))
    samples, beams = found
    assert samples == pytest.approx(1.0)
    assert beams is not None
    assert 0.2 < beams < 0.7


def test_without_an_ended_path_no_share_is_known() -> None:
    assert grow((0, [(1, 8, FinishReason.BOUNDARY)])).measure_kv_share(1) is None
