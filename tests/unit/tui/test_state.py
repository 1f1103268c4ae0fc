"""The view of a run and the dashboard's state: folds, figures, rates, replay, lines, export."""

import itertools
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge import events
from flashedge.client.run_figures import (
    collect_votes,
    compute_child_priors,
    compute_rollout_values,
    compute_vote_shares,
    describe_rest,
    find_thresholds,
    format_seconds,
    tally_levels,
)
from flashedge.client.run_view import CUT, LOG_LINES, ROOT, Numbered, RunView, fold, interrupt
from flashedge.client.tree_lines import MAX_LEAD, TreeLine, build_tree_lines
from flashedge.client.words import describe_distrust
from flashedge.search.strategies.mcts import compute_priors
from flashedge.tui import device, state
from flashedge.tui.colours import SCALE, choose_score_colour, draw_bar, draw_sparkline
from flashedge.tui.device import DeviceSample, read_devices
from flashedge.tui.export import to_json, to_svg
from flashedge.tui.state import Dashboard, TokenSample
from flashedge.tui.summary import parse_run, parse_status
from flashedge.tui.widgets.answer import CHOSEN, draw_line, draw_table
from flashedge.tui.widgets.beam_tree import find_group_key
from flashedge.tui.widgets.certainty import CertaintyPanel, draw_chart
from flashedge.tui.widgets.machine import draw_devices, draw_rates
from flashedge.types import NodeId, Vote
from tests.support.dashboard_rig import MCTS, engine, live_items, stored_items, summary
from tests.support.fake_nvml import FakeNvml
from tests.support.made_run import build_level, build_step
from tests.support.made_run import build_score as score

SVG = "{http://www.w3.org/2000/svg}"

LIVE, STORED = live_items(), stored_items()
WHOLE = fold(RunView(id="r"), STORED)
WHOLE_MCTS = fold(RunView(id="r"), live_items(MCTS))


def view(*story: events.Event) -> RunView:
    return fold(RunView(id="r"), enumerate(story, start=1))


def grown(*story: events.Event) -> RunView:
    return view(build_level(ROOT, 1, 1, 2), *story)


def step(node: int, tokens: int, text: str = "a step\n\n") -> events.StepCompleted:
    return build_step(node, text, tokens=tokens)


def mark(status: str, *nodes: int) -> events.NodesMarked:
    return events.NodesMarked(status=status, nodes=tuple(map(NodeId, nodes)))


def test_a_recorded_run_ends_as_its_result_says() -> None:
    run, result = WHOLE, STORED[-1][1].result  # type: ignore[union-attr]
    tokens = result["usage"]["tree_tokens"]
    assert (run.state, run.tokens, run.paths_done) == ("finished", tokens, 16)
    assert {n.id: n.status for n in run.nodes.values()} == {
        n["id"]: n["status"] for n in result["tree"]["nodes"]
    }
    assert run.best == result["choice"]
    assert "".join(run.nodes[n].text for n in run.path(run.best)) == result["text"]
    assert run.certainty[-1].certainty == pytest.approx(result["certainty"])
    alone = [n for n, e in STORED if not isinstance(e, events.NodeScored)]
    assert [e.seq for e in run.log if e.tally is None] == alone
    assert sum(run.event_counts.values()) == len(STORED)


def test_progress_stands_apart_and_a_cancelled_node_loses_what_it_had() -> None:
    run = grown()
    run = fold(run, [(1, events.Progress(tokens=((NodeId(1), 4), (NodeId(2), 6))))])
    assert (run.tokens, run.all_tokens, dict(run.growing)) == (0, 10, {1: 4, 2: 6})
    run = fold(run, [(2, step(1, 5)), (1, events.Progress(tokens=((NodeId(2), 9),)))])
    assert (run.tokens, run.all_tokens, dict(run.growing)) == (5, 11, {2: 6})
    run = fold(run, [(3, mark("cancelled", 2))])
    assert run.all_tokens == 5
    ended = replace(step(1, 5), answer="7", finish="stop", logprobs=(-1.0,))
    run = grown(ended, score(1, 0.5), mark("cancelled", 1))
    assert run.nodes[NodeId(1)] == replace(grown().nodes[NodeId(1)], status="cancelled")
    assert run.tokens == 0


def test_events_of_unknown_nodes_change_no_tree() -> None:
    run = grown(step(1, 5), score(1, 0.5))
    after = fold(run, [(4, step(77, 5)), (5, mark("pruned", 9))])
    assert (after.nodes, after.tokens) == (run.nodes, 5)


def test_goodput_and_the_best_path_while_a_run_goes_on() -> None:
    run = grown(step(1, 5), step(2, 7), mark("active", 1))
    assert (run.tokens, run.kept_tokens, grown().best) == (12, 5, None)
    run = fold(run, [(5, mark("pruned", 1))])
    assert run.kept_tokens == 0
    scored = step(1, 5), step(2, 5), score(1, 0.2), score(2, 0.9)
    assert grown(*scored, mark("active", 1, 2)).best == 2


def test_certainty_thresholds_and_exit() -> None:
    config = {"early_exit": {"thresholds": {"entropy": 0.8}}}
    run = view(
        events.RunStarted(config=config, queue_s=0.0),
        events.CertaintyUpdated(certainty=None, answers=0, tokens=10),
        events.CertaintyUpdated(certainty=0.9, answers=4, tokens=30),
        events.EarlyExit(reason="non_convergence", tokens=31),
    )
    assert find_thresholds(run.config) == {"entropy": 0.8}
    assert find_thresholds({}) == find_thresholds({"early_exit": None}) == {}
    assert [(p.tokens, p.certainty) for p in run.certainty] == [(10, None), (30, 0.9)]
    assert run.exit is not None
    assert (run.exit.tokens, run.exit.reason) == (31, "non_convergence")
    assert run.log[-1].text == "stopped early: non convergence"


def test_ends_and_what_is_noted_of_them() -> None:
    failed, cancelled = (
        events.RunFailed(error="no room", code="x"),
        events.RunCancelled(reason="asked"),
    )
    for end, ended, note in ((failed, "failed", "no room"), (cancelled, "cancelled", "asked")):
        run = fold(grown(), [(1, events.Progress(tokens=((NodeId(1), 4),))), (2, end)])
        assert (run.state, run.note, dict(run.growing), run.over) == (ended, note, {}, True)
        assert interrupt(run) is run
    run = interrupt(grown(step(1, 5)))
    assert (run.state, run.over) == ("interrupted", True)
    assert {n.id: n.status for n in run.nodes.values() if n.id != ROOT} == {1: "generated", 2: CUT}
    run = grown(events.EngineRestarted(engine="verifier", waited_s=2.04))
    assert run.note == "the verifier engine died and was restarted in 2.0 s"


# ---------------------------------------------------------------- live in any chunks


def chunked(items: list[Numbered], cuts: list[int], back: int = 0) -> RunView:
    """The fold of the chunks, each with the last `back` events before it once more."""
    run = RunView(id="r")
    edges = [0, *sorted(c % (len(items) + 1) for c in cuts), len(items)]
    for start, end in itertools.pairwise(edges):
        run = fold(run, items[max(start - back, 0) : end])
    return run


nodes = st.integers(0, 119).map(NodeId)
progress = st.builds(
    lambda tokens, tails: events.Progress(tokens=tuple(tokens.items()), tails=tuple(tails.items())),
    st.dictionaries(nodes, st.integers(0, 99), max_size=8),
    st.dictionaries(nodes, st.sampled_from(["a", "b", ""]), max_size=3),
)


@settings(max_examples=90, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=40), st.just(0) | st.integers(0, 60))
def test_live_in_any_chunks_that_may_repeat_events_is_the_stored_run(
    cuts: list[int], back: int
) -> None:
    assert chunked(LIVE, cuts, back) == WHOLE


@settings(max_examples=60, deadline=None)
@given(
    end=st.integers(0, len(STORED)),
    more=st.lists(st.tuples(st.integers(0, 10_000), progress), max_size=25),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_chunks_do_not_matter_at_any_moment(
    end: int, more: list[tuple[int, events.Progress]], cuts: list[int]
) -> None:
    items: list[Numbered] = list(STORED[:end])
    for place, event in more:
        at = place % (len(items) + 1)
        items.insert(at, (items[at - 1][0] if at else 0, event))
    one_by_one = RunView(id="r")
    for item in items:
        one_by_one = fold(one_by_one, [item])
    assert chunked(items, cuts) == one_by_one


def test_scores_by_level_are_known_from_the_first_level() -> None:
    scored = (score(1, 0.2), score(2, 0.9))
    (level,) = tally_levels(grown(build_step(1, "a"), build_step(2, "b"), *scored))
    assert (level.depth, level.scored, level.best) == (1, 2, 0.9)
    assert level.mean == pytest.approx(0.55)
    assert [s.depth for s in tally_levels(WHOLE)] == list(range(1, 8))
    assert tally_levels(RunView()) == ()


def test_votes_before_and_after_the_result() -> None:
    run = fold(RunView(id="r"), STORED[:-1])
    assert run.result is None
    assert {v.answer: v.count for v in collect_votes(run)} == {"46": 15, "22": 1}
    assert collect_votes(WHOLE)[0] == Vote(answer="46", weight=11.080425500869751, count=15)
    (best, share), (_, rest) = compute_vote_shares(WHOLE)
    assert (best.answer, share + rest) == ("46", pytest.approx(1.0))
    assert share == pytest.approx(11.080425500869751 / (11.080425500869751 + 0.7384710907936096))
    assert compute_vote_shares(grown()) == ()
    run = grown(replace(step(1, 1, "7"), finish="stop", answer="7"))
    vote = Vote(answer="7", weight=0.0, count=1)
    assert (run.paths_done, collect_votes(run)) == (1, (vote,)), "before its level is decided"


def test_visits_and_values_follow_from_the_rollouts() -> None:
    run, values = WHOLE_MCTS, compute_rollout_values(WHOLE_MCTS)
    assert len(run.rollouts) == run.config["n"] == 12
    assert values[ROOT][0] == 12
    for node, (visits, value) in values.items():
        ends = [end for end in run.rollouts if node == ROOT or node in run.path(end)]
        assert visits == len(ends)
        scores = [run.nodes[end].score for end in ends]
        assert value == pytest.approx(sum(s for s in scores if s is not None) / len(ends))


def test_priors_are_those_of_the_search() -> None:
    run = WHOLE_MCTS
    ended = (e for _, e in live_items(MCTS) if isinstance(e, events.StepCompleted))
    segments = {event.node: SimpleNamespace(logprobs=event.logprobs) for event in ended}
    for _, event in live_items(MCTS):
        if isinstance(event, events.NodesExpanded):
            children = [c for c, _, _ in event.children if run.nodes[c].status != "duplicate"]
            priors = compute_child_priors(run, event.parent)
            assert list(priors) == children
            expected = compute_priors([segments[c] for c in children])
            assert list(priors.values()) == pytest.approx(list(expected))
    assert compute_child_priors(grown(), ROOT) == {}


def test_progress_in_words() -> None:
    begun = fold(RunView(id="r"), LIVE[:200])
    assert describe_rest(begun, 10.0) is None, "how many levels follow is unknown"
    mcts = fold(RunView(id="r"), live_items(MCTS)[:-80])
    done = len(mcts.rollouts)
    assert describe_rest(mcts, 6.0) == f"about {format_seconds(6.0 / done * (12 - done))} left"
    assert describe_rest(WHOLE_MCTS, 6.0) is None
    assert [format_seconds(s) for s in (8.26, 42.2, 187)] == ["8.3 s", "42 s", "3:07"]


def test_the_log_keeps_rare_events() -> None:
    restart = events.EngineRestarted(engine="verifier", waited_s=1.0)
    steps = [(i, step(1, 3)) for i in range(2, 2 * LOG_LINES)]
    run = fold(grown(), [*steps, (2 * LOG_LINES, restart)])
    run = fold(run, [(i, step(1, 3)) for i in range(2 * LOG_LINES + 1, 4 * LOG_LINES)])
    assert [line.category for line in run.log].count("errors") == 1
    assert len(run.log) == LOG_LINES + 1
    assert run.event_counts == {"steps": 4 * LOG_LINES - 2, "errors": 1}


READY = parse_status(
    {"state": "ready", "engines": {"generator": engine(1, 3), "verifier": engine(1, 1)}}
)


def listing(*runs: tuple[str, str]) -> Dashboard:
    return state.update_daemon(Dashboard(), READY, [parse_run(summary(r, s)) for r, s in runs])


def test_live_runs_come_first_and_one_is_chosen() -> None:
    now = listing(("old", "finished"), ("wait", "queued"), ("go", "running"))
    assert [r.id for r in now.runs] == ["go", "wait", "old"]
    assert now.chosen == "go"
    assert state.find_runs_to_follow(now) == ("go", "wait")
    now = state.choose(now, "old")
    assert state.find_runs_to_follow(now) == ("go", "wait", "old")
    now = state.fold_events(now, "old", STORED)
    assert state.find_runs_to_follow(now) == ("go", "wait")
    now = state.choose(listing(("old", "finished")), "new")
    now = state.update_daemon(now, READY, now.runs)
    assert now.chosen == "new", "the listing does not know it yet"
    assert state.find_runs_to_follow(now) == ("new",)


def test_runs_that_wait_stand_in_their_order_and_are_not_followed() -> None:
    now = listing(("go", "running"))
    first, second = (
        parse_run(summary(f"wait{place}", "queued", created_at=120.0 - place, position=place))
        for place in (0, 1)
    )
    now = state.update_daemon(now, READY, [second, first, *now.runs])
    assert [r.id for r in now.runs] == ["go", "wait0", "wait1"]
    assert now.chosen == "go"
    started = parse_run(summary("wait1", "running", created_at=119.0))
    now = state.update_daemon(now, READY, [first, started, now.runs[0]])
    assert now.chosen == "wait1"
    alone = state.update_daemon(listing(("old", "finished")), READY, [first])
    assert alone.chosen == "wait0", "nothing runs"


def test_what_is_known_of_a_run_that_waits() -> None:
    known = {"position": 1, "starts_in_s": 12.0, "median_tokens": 420.4, "tail_tokens": 1532.0}
    row = parse_run(summary("r", "queued", **known))
    assert (row.position, row.starts_in_s) == (1, 12.0)
    assert row.prediction == "about 420, 1 in 10 over 1,532 tokens"
    assert parse_run(summary("r", "queued", median_tokens=None)).prediction == ""
    line = f"waiting, 1 before it, starts in about 12 s · a path: {row.prediction}"
    now = replace(listing(), runs=(row,), chosen="r")
    assert CertaintyPanel().draw(now, 110, 1).plain.split(maxsplit=1)[1] == line


def poll(now: Dashboard, kept: int, first: int, last: int) -> Dashboard:
    """A poll that lists runs `first` to `last`, the newest first, of `kept` runs."""
    rows = (summary(f"r{i:02}", "finished", created_at=i) for i in range(last, first - 1, -1))
    return state.update_daemon(now, parse_status({"kept_runs": kept}), list(map(parse_run, rows)))


def test_older_runs_stay_listed_behind_the_newest() -> None:
    now = poll(Dashboard(), 20, 15, 19)
    assert (now.has_older, now.oldest and now.oldest.id) == (True, "r15")
    now = state.add_older(now, poll(Dashboard(), 20, 5, 15).runs)
    assert [r.id for r in now.listed] == [f"r{i:02}" for i in range(19, 4, -1)]
    now = poll(now, 22, 17, 21)  # two new ones push two out of the poll
    assert [r.id for r in now.listed] == [f"r{i:02}" for i in range(21, 4, -1)]
    assert now.has_older
    now = state.choose(now, "r05")
    assert now.chosen_row is not None
    now = state.add_older(now, poll(Dashboard(), 22, 0, 4).runs)
    assert (now.has_older, len(now.listed)) == (False, 22)
    assert poll(now, 21, 17, 21).older == (), "a run was removed, and nobody knows which"


def test_few_trees_are_kept() -> None:
    now = listing(*((f"r{i}", "finished") for i in range(40)))
    for i in range(40):
        now = state.fold_events(now, f"r{i}", STORED[-1:])
    assert len(now.trees) <= state.TREES_KEPT
    assert {"r0", "r39"} <= set(now.trees)


def test_the_split_of_memory() -> None:
    assert READY.generator_share == pytest.approx(0.75)
    assert (parse_status({}).generator_share, parse_status({}).detail) == (None, "")
    assert parse_status({"detail": "verifier: it hung"}).detail == "verifier: it hung"
    view = {"quota_blocks": 3, "block_bytes": 1 << 20}
    for kv_memory, share in (("kept", 0.5), ("own", None)):
        either = {"view": view, "kv_memory": kv_memory}
        status = parse_status({"engines": {"generator": either, "verifier": either}})
        assert status.generator_share == share, "engines on different cards divide none"


def take(*counts: dict[str, tuple[int, int]], each_s: float = 1.0) -> tuple[TokenSample, ...]:
    return tuple(TokenSample(at_s=i * each_s, counts=c) for i, c in enumerate(counts))


def test_rates_over_a_window() -> None:
    samples = take(*({"a": (100 * i, 40 * i)} for i in range(7)), {"a": (700, 280), "b": (9, 9)})
    found = state.compute_rates(samples)
    assert (found[-1].tokens_per_s, found[-1].goodput_per_s) == (100.0, 40.0)
    assert state.compute_rates(samples[:1]) == ()
    assert state.compute_rates(samples, "b") == (), "it was seen once"
    begun = take({}, *({"a": (200 * i, 0)} for i in (1, 2, 3)), each_s=0.5)
    assert state.compute_rates(begun)[-1].tokens_per_s == pytest.approx(400 / 1.5)
    now = Dashboard(samples=samples)
    for second in range(8, 200):
        now = state.take_sample(now, float(second))
    assert len(now.samples) == state.KEPT_S, "they do not pile up"


def test_there_is_no_rate_before_a_run_was_seen_twice() -> None:
    samples = take({}, {}, {"a": (1176, 0)})
    assert [(r.at_s, r.tokens_per_s) for r in state.compute_rates(samples)] == [(1.0, 0.0)]
    for height in (1, 4):
        for shown in ((), samples):
            drawn = draw_rates(Dashboard(samples=shown), 44, height).plain
            assert "–" in drawn
            assert "0" not in drawn
    later = (*samples, TokenSample(at_s=3.0, counts={"a": (1276, 40)}))
    assert state.compute_rates(later)[-1].tokens_per_s > 0
    assert "–" not in draw_rates(Dashboard(samples=later), 44, 4).plain


def test_the_last_tokens_of_a_run_count() -> None:
    now = state.fold_events(listing(("go", "running")), "go", LIVE[:160])
    now = state.take_sample(now, 1.0)
    now = state.fold_events(now, "go", STORED)
    now = state.update_daemon(now, READY, [parse_run(summary("go", "finished"))])
    now = state.take_sample(now, 2.0)
    assert now.rates[-1].tokens_per_s == 988
    assert state.show_replay(now, None).rates == now.rates, "choosing a run ends no replay"
    replay = state.build_replay("go", STORED)
    assert state.show_replay(state.show_replay(now, replay), None).rates == ()
    late = state.fold_events(state.choose(now, "old"), "old", STORED)
    assert "old" not in state.take_sample(late, 3.0).samples[-1].counts


@pytest.mark.parametrize("speed", state.SPEEDS)
def test_a_replay_gives_every_event_once(speed: int) -> None:
    played, given = replace(state.build_replay("r", STORED), speed=speed), []
    while not played.over:
        before, played = played, played.advance(0.05)
        given += STORED[before.due : played.due]
        assert played.view == fold(RunView(id="r"), given)
    assert given == STORED
    assert played.advance(5.0).view == played.view
    timing = STORED[-1][1].result["timing"]  # type: ignore[union-attr]
    assert played.total_s == pytest.approx(timing["total_s"] - timing["queue_s"])
    assert list(played.offsets_s) == sorted(played.offsets_s)
    assert state.build_replay("r", STORED[:100]).total_s == pytest.approx(2.0), "without timing"


def test_lines_of_a_tree() -> None:
    run, lines = WHOLE, build_tree_lines(WHOLE)
    assert len(lines) == len(run.nodes) - 1
    places = {line.node: i for i, line in enumerate(lines)}
    for line in lines:
        parent = run.nodes[line.node].parent
        assert parent == ROOT or places[parent] < places[line.node]  # type: ignore[index]
    kept = build_tree_lines(run, hidden=frozenset({"pruned", "duplicate"}))
    assert {run.nodes[line.node].status for line in kept} == {"active", "complete"}
    shut = build_tree_lines(run, collapsed=frozenset({NodeId(1)}))
    hidden = next(line.hidden for line in shut if line.node == 1)
    assert hidden == len(lines) - len(shut)


def family(*families: tuple[int, ...]) -> RunView:
    return view(*(build_level(parent, 1, *children) for parent, *children in families))


def test_only_branch_points_indent_and_any_depth_is_drawn() -> None:
    run = family((0, 1, 2), (1, 3), (3, 4, 5), (5, 6), (4, 7))
    drawn = [f"{line.lead}{line.node}" for line in build_tree_lines(run)]
    assert drawn == ["├ 2", "1", "3", "├ 4", "│ 7", "└ 5", "  6"]
    deep = family(*((max(2 * i - 1, 0), 2 * i + 1, 2 * i + 2) for i in range(200)))
    lines = build_tree_lines(deep)
    assert len(lines) == len(deep.nodes) - 1
    assert {line.lead for line in lines} == {"", "├ ", "└ "}, "a chain takes one column"
    bushy = family(*((n, 2 * n + 1, 2 * n + 2) for n in range(2**12 - 1)))
    assert max(len(line.lead) for line in build_tree_lines(bushy)) == MAX_LEAD


def grouped(run: RunView) -> tuple[TreeLine, ...]:
    return build_tree_lines(run, group=partial(find_group_key, run))


def test_equal_siblings_share_a_line() -> None:
    run, lines = WHOLE, grouped(WHOLE)
    assert sorted(m for line in lines for m in line.members) == sorted(set(run.nodes) - {ROOT})
    for line in lines:
        assert len({run.nodes[m].text.strip() for m in line.members}) == 1
        assert not any(run.children.get(m) for m in line.members[1:])
    assert len(lines) < len(run.nodes) - 1
    assert [line.members for line in grouped(interrupt(grown()))] == [(1, 2)]
    growing = replace(grown(), growing={1: 5, 2: 5})
    for tails, count in (({1: "Day 1", 2: "Day 1"}, 1), ({1: "Day 1", 2: "Day 2"}, 2), ({}, 1)):
        assert len(grouped(replace(growing, tails=tails))) == count


def test_a_filter_keeps_what_leads_to_a_match() -> None:
    run = WHOLE
    lines = build_tree_lines(run, wanted="the ANSWER is \\boxed{22}")
    found = [n for n in run.nodes.values() if "boxed{22}" in n.text]
    assert {line.node for line in lines} == {i for n in found for i in run.path(n.id)}
    assert build_tree_lines(run, wanted="no such text") == ()


def export_twice(run: RunView) -> tuple[dict[str, Any], ElementTree.Element, list[str]]:
    """The run as JSON, as a picture, and the lines of text in that."""
    picture = ElementTree.fromstring(to_svg(run))
    return json.loads(to_json(run)), picture, [t.text or "" for t in picture.iter(f"{SVG}text")]


def test_exports() -> None:
    run = WHOLE
    exported, picture, words = export_twice(run)
    assert (exported["answer"], len(exported["nodes"])) == ("46", len(run.nodes))
    assert [n["id"] for n in exported["nodes"] if n["best"]] == sorted(run.path(run.best))
    assert [n["text"] for n in exported["nodes"]] == [n.text for n in run.nodes.values()]
    assert exported["legend"]["marks"]["pruned"] == "✗"
    assert (exported["trusted"], any(n["cut"] for n in exported["nodes"])) == (None, False)
    assert len(picture.findall(f"{SVG}g/{SVG}g")) == len(run.nodes)
    assert "✗ pruned" in " ".join(words), "the legend"
    assert all(run.nodes[n].text.strip() in " ".join(words) for n in run.path(run.best))
    assert export_twice(RunView(id="<&>"))[0]["run"] == "<&>"


def test_exports_show_distrust_and_paths_that_a_limit_cut() -> None:
    run = replace(WHOLE, result={"answer": "46", "trusted": False})
    end = next(n for n in run.nodes.values() if n.status == "complete")
    cut = replace(end, finish="length", answer=None)
    exported, picture, words = export_twice(replace(run, nodes={**run.nodes, end.id: cut}))
    assert exported["trusted"] is False
    assert [n["id"] for n in exported["nodes"] if n["cut"]] == [end.id]
    assert describe_distrust() in words
    assert sum("stroke-dasharray" in box.attrib for box in picture.iter(f"{SVG}rect")) == 1
    assert any("≈ cut, box dashed" in line for line in words), "the legend"


def test_scores_are_read_without_colour() -> None:
    assert [draw_bar(p, 2) for p in (0.0, 0.25, 0.5, 1.0, 7.0)] == ["  ", "▌ ", "█ ", "██", "██"]
    assert [choose_score_colour(s) for s in (0.0, 1.0, -3.0)] == [SCALE[0], SCALE[-1], SCALE[0]]
    assert draw_sparkline([0, 4, 8], 4) == "  ▄█"

    def luminance(c: str) -> float:
        r, g, b = (int(c[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    assert [luminance(c) for c in SCALE] == sorted(luminance(c) for c in SCALE)


def test_the_engines_cards_are_sampled_or_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=24 << 30, free=4 << 30, used=20 << 30)
    each = [{"Name": name, "MemoryInfo": memory} for name in ("first", "second")]
    busy = SimpleNamespace(gpu=50)
    nvml = FakeNvml(each=each, UtilizationRates=busy, PowerUsage=0, EnforcedPowerLimit=0)
    monkeypatch.setattr(nvml, "NVML_TEMPERATURE_GPU", 0, raising=False)
    monkeypatch.setattr(device, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [(card.name, card.label) for card in read_devices()] == [("second", "1")]
    engines = {"generator": {"cards": "GPU 0 + GPU 1"}, "verifier": {"cards": "GPU 1"}}
    assert parse_status({"engines": engines}).cards == ("0", "1")
    assert [card.name for card in read_devices(("0", "1"))] == ["first", "second"]


def test_the_status_tells_how_fast_requests_were_and_who_holds_the_card() -> None:
    times = {"p50": 0.1, "p90": 0.4, "p99": 2.0}
    latency = {
        "chat": {"requests": 2, "first_token_s": times, "token_s": None},
        "run": {"requests": 5, "first_token_s": times, "token_s": times},
        "idle": {"requests": 0, "first_token_s": None, "token_s": None},
    }
    user = {"card": 0, "pid": 7, "name": "ollama\x1b]0;x", "memory_bytes": 3 << 30}
    nameless = {"card": 0, "pid": 8, "name": None, "memory_bytes": None}
    pairs = {"a": {"card_users": [user, nameless]}, "b": {"card_users": [user]}}
    drafts = {"drafted_tokens": 8, "accepted_tokens": 3}
    engines = {"generator": {"view": {"cache_hits": 0.75, "token_drafts": drafts}}}
    status = parse_status({"engines": engines, "latency": latency, "pairs": pairs})
    told = [(one.kind, one.first_token_s, one.token_s) for one in status.latency]
    assert told == [("run", (0.1, 0.4), (0.1, 0.4)), ("chat", (0.1, 0.4), None)]
    assert status.others == ("ollama␛]0;x 3.0 GiB", "process 8")
    assert (status.generator.cache_hits, status.verifier.cache_hits) == (0.75, None)
    assert (status.generator.accepted_drafts, status.verifier.accepted_drafts) == (0.375, None)


def test_each_card_has_a_line_as_far_as_there_is_room() -> None:
    known = {"name": "4090", "memory_used_bytes": 6 << 30, "memory_total_bytes": 24 << 30}
    figures = [{"label": str(i), "utilization": i / 10, "power_w": 100.0 + i} for i in range(4)]
    cards = tuple(DeviceSample(**known, **own) for own in figures)

    def draw(count: int, height: int) -> list[str]:
        panel = draw_devices(Dashboard(devices=cards[:count]), 58, height)
        return [" ".join(line.split()) for line in panel.plain.splitlines()]

    assert draw(1, 3)[0].endswith("0% 100 W")
    two = draw(2, 3)
    assert [line.split()[:2] for line in two] == [["GPU", "0"], ["GPU", "1"]]
    assert two[1].endswith("10% 6.0 GiB of 24.0 GiB 101 W")
    assert draw(4, 3)[2] == "and 2 more: nvidia-smi shows them"
    assert draw(2, 1) == ["Device GPU 0 0%, memory 25% GPU 1 10%, memory 25%"]


def test_this_machine_can_be_read() -> None:
    (sample,) = read_devices()
    assert 0 <= sample.utilization <= 1
    assert 0 < sample.memory_used_bytes <= sample.memory_total_bytes


def test_a_run_is_over_in_the_list_as_soon_as_its_tree_is() -> None:
    now = state.fold_events(listing(("r", "running")), "r", LIVE)
    (row,) = now.listed
    told = row.status, row.answer, row.live, row.tokens, row.prediction
    assert told == ("finished", "46", False, now.trees["r"].all_tokens, "")
    assert row.total_s == pytest.approx(4.33, abs=0.01)
    assert now.chosen_row == row
    begun = state.fold_events(listing(("r", "running")), "r", LIVE[:99])
    (row,) = state.interrupt_run(begun, "r").listed
    assert (row.status, row.answer) == ("interrupted", None)


VOTES = {"10": 9, "11": 3, "12": 2, "13": 1, "14": 1}
SHARES = tuple((Vote(answer=a, weight=n / 16, count=n), n / 16) for a, n in VOTES.items())


def test_a_line_of_votes_marks_the_chosen_and_counts_those_that_it_has_no_room_for() -> None:
    def draw(width: int) -> str:
        return draw_line("Votes", SHARES, "10", width).plain

    assert draw(100).count("×") == len(VOTES)
    assert "more" not in draw(100)
    assert len(draw(50)) <= 50
    assert draw(50).endswith(f"{len(VOTES) - draw(50).count('×')} more")
    assert draw(12).count("×") == 1, "one always stands"
    line = draw_line("Answer", SHARES, "12", 60).plain
    assert line.startswith(f"Answer     {CHOSEN} 12 ×2 12% · 10 ×9 56%")
    assert line.count(CHOSEN) == 1
    assert draw_line("Answer", (), "12", 60).plain == f"Answer     {CHOSEN} 12", "no vote has it"


def test_the_table_marks_the_chosen_answer_and_counts_what_it_has_no_line_for() -> None:
    rows = [line.plain for line in draw_table(SHARES, "11", 42, 8)]
    assert [row[:4].strip() for row in rows[1:]] == ["10", f"{CHOSEN} 11", "12", "13", "14"]
    assert {len(row) for row in rows} == {42}
    few = draw_table(SHARES, "10", 42, 4)
    assert (len(few), few[-1].plain.strip()) == (4, "3 more answers from 4 paths")


def test_a_chart_is_drawn_even_without_a_line_of_room() -> None:
    points = (events.CertaintyUpdated(certainty=c, answers=2, tokens=9) for c in (0.2, 0.9))
    run = RunView(certainty=tuple(points), config={"early_exit": {"thresholds": {"entropy": 0.8}}})
    for height in range(-3, 4):
        assert len(draw_chart(run, 40, height)) == max(height, 2)
