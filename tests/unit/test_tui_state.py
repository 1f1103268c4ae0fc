"""The dashboard's state: folds, snapshots, rates, replay, lines, export."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from flashedge import events
from flashedge.tui import replay
from flashedge.tui.export import to_json, to_svg
from flashedge.tui.feed import backoff_s
from flashedge.tui.state import dashboard as state
from flashedge.tui.state import rates
from flashedge.tui.state.dashboard import Dashboard
from flashedge.tui.state.device import read_device
from flashedge.tui.state.node import ROOT
from flashedge.tui.state.rates import Sample
from flashedge.tui.state.run import RunState, coalesced, fold, interrupted, thresholds_of
from flashedge.tui.state.scores import SCALE, bar, colour, spark
from flashedge.tui.state.summary import look_of, summary_of
from flashedge.tui.tree_lines import tree_lines
from flashedge.types import NodeId
from tests.tui.rig import engine, live_items, recorded, stored_items, summary


def whole() -> RunState:
    return fold(RunState(id="r"), stored_items())


def grown(*items: events.Event) -> RunState:
    """A root with nodes 1 and 2 that generate, then `items`."""
    first = events.NodesExpanded(
        parent=ROOT, depth=1, children=((NodeId(1), 0, 7), (NodeId(2), 1, 8))
    )
    return fold(RunState(id="r"), [(i + 1, e) for i, e in enumerate((first, *items))])


def step(node: int, tokens: int, text: str = "a step\n\n") -> events.StepCompleted:
    return events.StepCompleted(
        node=NodeId(node),
        token_ids=(5,) * tokens,
        logprobs=(-0.1,) * tokens,
        text=text,
        steps=(text,),
        finish="boundary",
    )


# ---------------------------------------------------------------- one run


def test_a_recorded_run_ends_as_its_result_says() -> None:
    run, result = whole(), recorded()[1][-1][2].result  # type: ignore[union-attr]
    assert run.state == "finished"
    assert run.tokens == result["usage"]["tree_tokens"]
    assert run.complete == 16
    assert {n.id: n.status for n in run.nodes.values()} == {
        n["id"]: n["status"] for n in result["tree"]["nodes"]
    }
    assert run.best == result["choice"]
    assert "".join(run.nodes[n].text for n in run.path(run.best)) == result["text"]
    assert run.certainty[-1].certainty == pytest.approx(result["certainty"])
    assert [e.seq for e in run.log] == [n for n, _ in stored_items()]


def test_progress_stands_apart_from_committed_tokens() -> None:
    run = grown()
    run = fold(run, [(1, events.Progress(tokens=((NodeId(1), 4), (NodeId(2), 6))))])
    assert (run.tokens, run.all_tokens, dict(run.growing)) == (0, 10, {1: 4, 2: 6})
    run = fold(run, [(2, step(1, 5))])
    assert (run.tokens, run.all_tokens, dict(run.growing)) == (5, 11, {2: 6})
    run = fold(run, [(3, events.NodesMarked(status="cancelled", nodes=(NodeId(2),)))])
    assert run.all_tokens == 5


def test_what_was_folded_changes_nothing_again() -> None:
    run = grown(step(1, 5), events.NodeScored(node=NodeId(1), scores=(0.5,), score=0.5))
    assert fold(run, [(2, step(1, 9)), (3, step(1, 9))]) == run
    late = events.Progress(tokens=((NodeId(2), 3),))
    assert fold(run, [(1, late)]) == run


def test_unknown_nodes_change_nothing_but_the_log() -> None:
    run = grown()
    after = fold(
        run, [(2, step(77, 5)), (3, events.NodesMarked(status="pruned", nodes=(NodeId(9),)))]
    )
    assert (after.nodes, after.tokens) == (run.nodes, 0)


def test_superseded_progress_is_dropped_before_it_costs() -> None:
    one, two = NodeId(1), NodeId(2)
    items = [
        (1, events.Progress(tokens=((one, 1), (two, 1)))),
        (1, events.Progress(tokens=((one, 2), (two, 2)))),
        (2, step(1, 5)),
        (2, events.Progress(tokens=((two, 3),))),
    ]
    assert coalesced(1, items) == [(1, events.Progress(tokens=((one, 2),))), *items[2:]]


def test_goodput_counts_what_the_search_keeps() -> None:
    run = grown(step(1, 5), step(2, 7), events.NodesMarked(status="active", nodes=(NodeId(1),)))
    assert (run.tokens, run.kept_tokens) == (12, 5)
    run = fold(run, [(5, events.NodesMarked(status="pruned", nodes=(NodeId(1),)))])
    assert run.kept_tokens == 0


def test_the_best_path_while_a_run_goes_on() -> None:
    scored = [
        events.NodeScored(node=NodeId(n), scores=(s,), score=s) for n, s in ((1, 0.2), (2, 0.9))
    ]
    marked = events.NodesMarked(status="active", nodes=(NodeId(1), NodeId(2)))
    assert grown(step(1, 5), step(2, 5), *scored, marked).best == 2
    assert grown().best is None


def test_certainty_thresholds_and_exit() -> None:
    config = {"certainty": {"thresholds": {"entropy": 0.8}}}
    run = fold(
        RunState(id="r"),
        [
            (1, events.RunStarted(config=config, queue_s=0.0)),
            (2, events.CertaintyUpdated(certainty=None, answers=0, tokens=10)),
            (3, events.CertaintyUpdated(certainty=0.9, answers=4, tokens=30)),
            (4, events.EarlyExit(reason="non_convergence", tokens=31)),
        ],
    )
    assert run.thresholds == {"entropy": 0.8}
    assert [(p.tokens, p.certainty) for p in run.certainty] == [(10, None), (30, 0.9)]
    assert run.exit is not None
    assert (run.exit.tokens, run.exit.reason) == (31, "non_convergence")
    assert run.log[-1].text == "stopped early: non convergence"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, {}),
        ({"thresholds": None}, {}),
        ({"policy": {"thresholds": {"least": [["c", 1], ["r", 0.5]]}}}, {"c": 1.0, "r": 0.5}),
        ({"thresholds": [["c", 0.5]]}, {"c": 0.5}),
    ],
)
def test_thresholds_wherever_they_stand(config: dict, found: dict) -> None:
    assert thresholds_of(config) == found


@pytest.mark.parametrize(
    ("end", "ended", "note"),
    [
        (events.RunFailed(error="no room", code="x"), "failed", "no room"),
        (events.RunCancelled(reason="asked"), "cancelled", "asked"),
    ],
)
def test_ends(end: events.Event, ended: str, note: str) -> None:
    run = fold(grown(), [(1, events.Progress(tokens=((NodeId(1), 4),))), (2, end)])
    assert (run.state, run.note, dict(run.growing), run.over) == (ended, note, {}, True)
    assert interrupted(run) is run


def test_an_interrupted_run() -> None:
    assert interrupted(grown()).state == "interrupted"


def test_a_restart_is_noted() -> None:
    run = grown(events.EngineRestarted(engine="verifier", waited_s=2.04))
    assert run.note == "the verifier engine died and is back after 2.0 s"


# ---------------------------------------------------------------- the dashboard


def seen(*runs: tuple[str, str]) -> Dashboard:
    look = look_of(
        {"state": "ready", "engines": {"generator": engine(1, 3), "verifier": engine(1, 1)}}
    )
    return state.saw_daemon(Dashboard(), look, [summary_of(summary(r, s)) for r, s in runs])


def test_live_runs_come_first_and_one_is_chosen() -> None:
    now = seen(("old", "finished"), ("wait", "queued"), ("go", "running"))
    assert [r.id for r in now.runs] == ["go", "wait", "old"]
    assert now.chosen == "go"
    assert state.to_follow(now) == ("go", "wait")
    now = state.choose(now, "old")
    assert state.to_follow(now) == ("go", "wait", "old")
    now = state.saw_events(now, "old", stored_items())
    assert state.to_follow(now) == ("go", "wait")


def test_a_run_that_the_listing_does_not_know_yet_stays_chosen() -> None:
    now = state.choose(seen(("old", "finished")), "new")
    assert now.look is not None
    now = state.saw_daemon(now, now.look, now.runs)
    assert now.chosen == "new"
    assert state.to_follow(now) == ("new",)


def test_a_lost_daemon_keeps_what_was_seen() -> None:
    before = state.saw_events(seen(("go", "running")), "go", live_items()[:50])
    now = state.lost(before, "gone", 2.0)
    assert (now.link.state, now.link.retry_in_s, now.look) == ("lost", 2.0, None)
    assert (now.trees, now.runs) == (before.trees, before.runs)


def test_few_trees_are_kept() -> None:
    now = seen(*((f"r{i}", "finished") for i in range(40)))
    for i in range(40):
        now = state.saw_events(now, f"r{i}", stored_items()[-1:])
    assert len(now.trees) <= state.TREES_KEPT
    assert {"r0", "r39"} <= set(now.trees)


def test_the_split_of_memory() -> None:
    look = seen().look
    assert look is not None
    assert look.generator_share == pytest.approx(0.75)
    assert look_of({}).generator_share is None


def test_rates_over_a_window() -> None:
    samples: tuple[Sample, ...] = ()
    for second in range(8):
        counts = {"a": (100 * second, 40 * second)} | ({"b": (9999, 9999)} if second == 7 else {})
        samples = rates.sampled(samples, Sample(at_s=float(second), counts=counts))
    found = rates.rates(samples)
    assert (found[-1].tokens_per_s, found[-1].goodput_per_s) == (100.0, 40.0)
    assert rates.rates(samples[:1]) == ()


def test_samples_do_not_pile_up() -> None:
    samples: tuple[Sample, ...] = ()
    for second in range(1000):
        samples = rates.sampled(samples, Sample(at_s=float(second), counts={}))
    assert len(samples) == rates.KEPT_S


# ---------------------------------------------------------------- replay


def test_a_replay_takes_the_runs_own_time() -> None:
    items = stored_items()
    played = replay.replay_of("r", items)
    timing = recorded()[1][-1][2].result["timing"]  # type: ignore[union-attr]
    assert played.total_s == pytest.approx(timing["total_s"] - timing["queue_s"])
    assert list(played.offsets_s) == sorted(played.offsets_s)


@pytest.mark.parametrize("speed", replay.SPEEDS)
def test_a_replay_gives_every_event_once(speed: int) -> None:
    items = stored_items()
    played, given = replay.replay_of("r", items), []
    while played.speed != speed:
        played = replay.faster(played)
    while not played.over:
        played, due = replay.advance(played, 0.05)
        given += due
    assert given == items
    assert replay.advance(played, 5.0)[1] == ()


def test_a_replayed_run_is_the_stored_run() -> None:
    now = state.started_replay(seen(("go", "finished")), "r", stored_items())
    while now.replay is not None and not now.replay.over:
        now = state.advanced_replay(now, 0.3)
    assert now.shown == whole()
    assert state.ended_replay(now).shown is None


def test_a_run_without_timing_is_played_evenly() -> None:
    played = replay.replay_of("r", stored_items()[:100])
    assert played.total_s == pytest.approx(2.0)


# ---------------------------------------------------------------- lines, export, the rest


def test_lines_of_a_tree() -> None:
    run = whole()
    lines = tree_lines(run)
    assert len(lines) == len(run.nodes) - 1
    places = {line.node: i for i, line in enumerate(lines)}
    for line in lines:
        parent = run.nodes[line.node].parent
        assert parent == ROOT or places[parent] < places[line.node]  # type: ignore[index]
    kept = tree_lines(run, dropped=False)
    assert {run.nodes[line.node].status for line in kept} == {"active", "complete"}
    shut = tree_lines(run, collapsed=frozenset({NodeId(1)}))
    hidden = next(line.hidden for line in shut if line.node == 1)
    assert hidden == len(lines) - len(shut)


def test_a_filter_keeps_what_leads_to_a_match() -> None:
    run = whole()
    lines = tree_lines(run, wanted="the ANSWER is \\boxed{22}")
    found = [n for n in run.nodes.values() if "boxed{22}" in n.text]
    assert {line.node for line in lines} == {i for n in found for i in run.path(n.id)}
    assert tree_lines(run, wanted="no such text") == ()


def test_exports() -> None:
    run = whole()
    told = json.loads(to_json(run))
    assert (told["answer"], len(told["nodes"])) == ("46", len(run.nodes))
    assert [n["id"] for n in told["nodes"] if n["best"]] == sorted(run.path(run.best))
    picture = ElementTree.fromstring(to_svg(run))
    boxes = picture.findall("{http://www.w3.org/2000/svg}g")
    assert len(boxes) == len(run.nodes)
    assert ElementTree.fromstring(to_svg(RunState(id="<&>"))) is not None


def test_scores_are_read_without_colour() -> None:
    assert [bar(p, 2) for p in (0.0, 0.25, 0.5, 1.0, 7.0)] == ["  ", "▌ ", "█ ", "██", "██"]
    assert [colour(s) for s in (0.0, 1.0, -3.0)] == [SCALE[0], SCALE[-1], SCALE[0]]
    assert spark([0, 4, 8], 4) == "  ▄█"

    def luminance(c: str) -> float:
        r, g, b = (int(c[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    assert [luminance(c) for c in SCALE] == sorted(luminance(c) for c in SCALE)


def test_back_off() -> None:
    assert [backoff_s(n) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]


def test_this_machine_can_be_read() -> None:
    sample = read_device()
    assert 0 <= sample.utilization <= 1
    assert 0 < sample.memory_used_bytes <= sample.memory_total_bytes
