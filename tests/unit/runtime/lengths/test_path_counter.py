"""Lengths of paths from a run's events: every strategy, cuts, cancels, and stored runs."""

from collections import Counter
from dataclasses import replace

import pytest

from flashedge.events import Progress, RunStarted, StepCompleted
from flashedge.runtime.lengths.path_counter import PathCounter, count_outline
from flashedge.runtime.lengths.predictions import iterate_newest, read_run
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
    return counter.count()


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
    found = zip(lengths.tokens, lengths.is_censored, strict=True)
    assert {tokens for tokens, is_censored in found if is_censored} == {20}
    assert lengths.num_outputs == SAMPLES.n


def build_lengths(*tokens: int, is_censored: tuple[bool, ...] = (False, False)) -> OutputLengths:
    return OutputLengths(tokens=tokens, is_censored=is_censored, weights=(1.0, 1.0))


@pytest.mark.parametrize("sees_progress", [True, False])
def test_a_cancelled_path_is_a_lower_bound_where_its_progress_was_seen(sees_progress: bool) -> None:
    """Of three samples one ended, one was cancelled at 70 tokens, one had not begun. Without
    progress the quick siblings are left out, too."""
    counter = PathCounter(sees_progress=sees_progress)
    counter.expand(NodeId(0), [NodeId(1), NodeId(2), NodeId(3)])
    counter.complete(NodeId(1), 40, "stop")
    if sees_progress:
        counter.observe(Progress(tokens=((NodeId(1), 30), (NodeId(2), 55))))
        counter.observe(Progress(tokens=((NodeId(2), 70),)))
    bound = build_lengths(40, 70, is_censored=(False, True))
    assert counter.count() == (bound if sees_progress else None)


def test_later_steps_alone_are_no_outputs() -> None:
    counter = PathCounter(sees_progress=False)
    counter.expand(NodeId(0), [NodeId(1), NodeId(2)])
    counter.complete(NodeId(1), 40, "boundary")  # its sibling was cancelled
    counter.expand(NodeId(1), [NodeId(3)])
    counter.complete(NodeId(3), 10, "stop")
    assert counter.count() is None
    counter.complete(NodeId(2), 30, "stop")
    assert counter.count() == build_lengths(30, 50)


# ---------------------------------------------------------------- stored runs


def keep(store: RunStore, run_id: str, spec: Request, story: Story, at: float) -> None:
    store.create(run_id, spec.to_json(), at)
    events = [RunStarted(config=spec.to_json(), queue_s=0.0), *story.events]
    kept = [event for event in events if not isinstance(event, Progress)]
    for number, event in enumerate(kept, 1):
        store.append(run_id, number, event)
    store.finish(run_id, "finished", {"usage": {"prompt_tokens": 8}}, None, at)


@pytest.mark.parametrize("strategy", ["self_consistency", "beam", "mcts"])
async def test_a_stored_run_counts_as_a_live_one(store: RunStore, strategy: str) -> None:
    spec = replace(BEAM, strategy=strategy)
    story = await drive(sim_engines(), spec)
    keep(store, "run-1", spec, story, 5.0)
    outline = store.outline("run-1")
    assert outline.prompt_tokens == 8
    assert count_outline(outline) == count(story, sees_progress=False)
    steps = sum(isinstance(event, StepCompleted) for event in story.events)
    assert len(outline.steps) == steps
    (stored,) = iterate_newest(store, 0.0)
    finished = read_run(store, stored)
    assert (finished.request.num_prompt_tokens, finished.request.kind) == (8, strategy)
    assert finished.request.text == "user: How many are left?"


async def test_runs_that_are_over_are_read_newest_first(store: RunStore) -> None:
    story = await drive(sim_engines(), SAMPLES)
    for number in range(6):
        keep(store, f"run-{number}", replace(SAMPLES, seed=number), story, number)
    store.create("run-open", SAMPLES.to_json(), 9.0)
    store.create("run-odd", {"problem": "of another version"}, 9.5)
    store.finish("run-odd", "failed", None, {}, 9.5)
    odd, *others = iterate_newest(store, 4.0)
    assert read_run(store, odd) is None
    assert [stored.id for stored in others] == ["run-5", "run-4"]
    assert len([*iterate_newest(store, 0.0)]) == 7


def test_an_unknown_run_has_an_empty_outline(store: RunStore) -> None:
    outline = store.outline("run-none")
    assert (outline.levels, outline.steps, outline.prompt_tokens) == ((), (), None)
    assert count_outline(outline) is None


def test_paths_hold_what_they_share_once() -> None:
    """Two paths of 10 tokens share 8: at their last level 12 of 20 tokens are held."""
    counter = PathCounter(sees_progress=True)
    counter.expand(NodeId(0), [NodeId(1), NodeId(2)])
    counter.complete(NodeId(1), 8, FinishReason.BOUNDARY)
    assert counter.measure_kv_share(2) is None, "no path has ended"
    counter.complete(NodeId(2), 3, FinishReason.BOUNDARY)
    counter.expand(NodeId(1), [NodeId(3), NodeId(4)])
    for node in (3, 4):
        counter.complete(NodeId(node), 2, FinishReason.STOP)
    assert counter.measure_kv_share(2) == pytest.approx(12 / 20)
