"""Every key, pressed by a pilot, on a scripted daemon, which may go away and come back."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.command import CommandList
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from flashedge.client.follow import RetryPolicy
from flashedge.tui.app import LISTED_RUNS, OLDER_RUNS, DashboardApp
from flashedge.tui.widgets.bars import COMMANDS, KEYS
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.dialogs import HELP, Draft, Help, Submit
from flashedge.tui.widgets.lines import EventLogPanel
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.texts import StepPanel
from tests.support import dashboard_rig as rig

OVER, OTHER = "run-over", "run-other"
KEPT = LISTED_RUNS + OLDER_RUNS + 7
_NAMES = {"+": "plus", "?": "question_mark", "-": "minus"}


async def until(pilot: Pilot[None], true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await pilot.pause(0.02)


@asynccontextmanager
async def opened(
    status: str = "finished", size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], DashboardApp, rig.FakeDaemon, rig.Clock]]:
    rows = rig.summary(OVER, status), rig.summary(OTHER, "finished", problem="Other [one.")
    daemon, clock = rig.FakeDaemon(*rows, items=rig.stored_items()), rig.Clock()
    if status == "running":
        daemon.logs[OVER] = rig.live_items()[:200]
    async with rig.opened(daemon, size, clock) as (pilot, app):
        await until(pilot, lambda: app.state.shown is not None and app.state.shown.seq > 100)
        await until(pilot, lambda: app.query_one(BeamTree).count)
        yield pilot, app, daemon, clock


async def test_help_the_last_line_panels_by_tab_and_quit() -> None:
    async with opened() as (pilot, app, _, _):
        shown = str(app.query_one("#keys").render())
        assert shown == "  ".join(f"{key} {word}" for key, word, _ in KEYS)
        assert {action for _, _, action in KEYS} <= {b.action for b in app.BINDINGS}
        assert all(path.is_absolute() for path in app.CSS_PATH), "a subclass may stand elsewhere"
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        assert "≈ cut by" in HELP, "the word that the tree and the CLI use"
        await pilot.press("escape")
        assert not isinstance(app.screen, Help)
        seen = []
        for _ in range(5):
            assert app.focused is not None
            seen.append(app.focused.id)
            await pilot.press("tab")
        assert seen == ["runs", "problem", "tree", "step", "log"]
        await pilot.press("q")
        await pilot.pause(0.1)
        assert not app.is_running


async def test_a_filter_of_the_runs_chooses_one_that_it_shows() -> None:
    async with opened() as (pilot, app, _, _):
        runs, tree = app.query_one(RunList), app.query_one(BeamTree)
        assert (app.state.chosen, runs.is_marked) == (OVER, True)
        await pilot.press("slash", *"zzz")
        assert "no run matches /zzz" in runs.render_line(0).text
        assert runs.border_title == "Runs · 0 of 225 · /zzz"
        assert app.state.chosen == OVER
        await pilot.press("escape", "slash", *"other [")
        assert (runs.count, runs.filter) == (1, "other [")
        await until(pilot, lambda: app.state.shown is not None and app.state.shown.id == OTHER)
        assert (runs.items[runs.cursor].id, runs.is_marked) == (OTHER, True)
        await pilot.press("enter")
        assert app.focused is runs
        assert runs.count == 1
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert (runs.count, runs.filter) == (2, "")
        assert app.state.chosen == OTHER
        assert (runs.items[runs.cursor].id, runs.is_marked) == (OTHER, True)
        tree.focus()
        await pilot.press("slash", *"zzz")
        assert "nothing matches /zzz" in tree.render_line(0).text


async def test_a_run_that_the_filter_hides_is_not_marked() -> None:
    async with opened() as (pilot, app, daemon, _):
        runs = app.query_one(RunList)
        await pilot.press("slash", *"other", "enter", "f")
        begun = rig.summary("run-begun", "running", problem="Z", created_at=99.0)
        daemon.begin(begun, rig.live_items()[:50])
        await until(pilot, lambda: app.state.chosen == "run-begun")
        await until(pilot, lambda: not runs.is_marked)
        assert (runs.count, runs.items[0].id) == (1, OTHER)
        await pilot.press("escape")
        assert (runs.items[runs.cursor].id, runs.is_marked) == ("run-begun", True)


@asynccontextmanager
async def opened_with_many() -> AsyncIterator[
    tuple[Pilot[None], DashboardApp, rig.FakeDaemon, RunList]
]:
    rows = [
        rig.summary(f"run-{i:03}", "finished", problem=f"Problem {i}.", created_at=97.0 - i)
        for i in range(KEPT)
    ]
    daemon = rig.FakeDaemon(*rows)
    daemon.more_kept = 0
    async with rig.opened(daemon) as (pilot, app):
        runs = app.query_one(RunList)
        await until(pilot, lambda: runs.count)
        yield pilot, app, daemon, runs


async def test_the_end_of_the_list_brings_older_runs() -> None:
    async with opened_with_many() as (pilot, app, daemon, runs):
        assert runs.border_title == f"Runs · {LISTED_RUNS} of {KEPT}"
        assert daemon.pages == []
        await pilot.press("end")
        await until(pilot, lambda: runs.count == LISTED_RUNS + OLDER_RUNS)
        assert app.state.chosen == f"run-{LISTED_RUNS - 1:03}", "the cursor stays on its run"
        await pilot.press("down", "end")
        await until(pilot, lambda: runs.count == KEPT)
        await pilot.press("end", "down")
        await pilot.pause(0.2)
        assert runs.items[runs.cursor].id == app.state.chosen == f"run-{KEPT - 1:03}"
        assert runs.border_title == f"Runs · {KEPT}"
        assert len(daemon.pages) == 2, "a page is asked for once, and none behind the last"


async def test_a_filter_looks_through_all_runs() -> None:
    async with opened_with_many() as (pilot, app, daemon, runs):
        daemon.may_page.clear()
        await pilot.press("slash", *f"problem {KEPT - 1}.")
        await until(pilot, lambda: daemon.pages)
        assert (runs.count, runs.border_title) == (0, f"Runs · 0 of {KEPT} · /problem {KEPT - 1}.")
        daemon.may_page.set()
        await until(pilot, lambda: runs.count == 1)
        assert runs.items[0].id == f"run-{KEPT - 1:03}"
        assert runs.border_title == f"Runs · 1 of {KEPT} · /problem {KEPT - 1}."
        await until(pilot, lambda: app.state.chosen == f"run-{KEPT - 1:03}")
        assert len(daemon.pages) == 2


async def test_a_page_without_new_runs_is_the_last_that_a_filter_asks_for() -> None:
    """The daemon counts more runs than it lists: some were removed meanwhile."""
    rows = rig.summary("run-1", "finished"), rig.summary("run-2", "finished")
    daemon = rig.FakeDaemon(*rows)
    async with rig.opened(daemon) as (pilot, app):
        await until(pilot, lambda: app.query_one(RunList).count)
        app._poll_s = 60.0  # a poll asks, too
        await pilot.pause(0.2)
        await pilot.press("slash", "z")
        await until(pilot, lambda: daemon.pages)
        await pilot.pause(0.2)
        assert len(daemon.pages) == 1


async def test_a_filter_of_the_tree_goes_from_match_to_match() -> None:
    async with opened() as (pilot, app, _, _):
        tree = app.query_one(BeamTree)

        def find(text: str) -> set[str]:
            lines = [tree.draw_line(i, 100).plain.split() for i in range(tree.count)]
            return {next((w for w in line if w[0] == "×"), "") for line in lines if text in line}

        whole, before = find("85+11=96."), tree.count
        assert whole == {"×14"}
        tree.focus()
        await pilot.press("home", "slash", *"boxed{22}", "enter")
        assert 0 < tree.count < before
        assert find("85+11=96.") == whole, "siblings that the filter hides count"
        assert app.focused is tree
        await pilot.press("slash")
        assert app.query_one("#filter", Input).value == "boxed{22}"
        await pilot.press("escape")
        assert tree.count == before
        await pilot.press("home", "slash", *"24+24", "escape", "slash", *"22+24", "enter")
        matches = [i for i in range(tree.count) if "22+24" in tree.draw_line(i, 100).plain]
        assert len(matches) > 2
        assert tree.cursor == matches[0]
        assert f"match 1 of {len(matches)}" in str(tree.border_title)
        line = tree.draw_line(tree.cursor, 100)
        marked = {line.plain[s.start : s.end] for s in line.spans if "reverse" in str(s.style)}
        assert marked == {"22+24"}
        await pilot.press("n")
        assert tree.cursor == matches[1]
        await pilot.press("N", "N")
        assert tree.cursor == matches[-1]


async def test_a_run_that_goes_on_is_cancelled_and_not_replayed() -> None:
    async with opened("running") as (pilot, app, daemon, _):
        await pilot.press("r")
        await pilot.pause(0.1)
        assert app.state.replay is None
        await pilot.press("c", "n")
        assert daemon.cancelled == []
        await pilot.press("c", "y")
        await until(pilot, lambda: daemon.cancelled == [OVER])
        await until(pilot, lambda: app.state.chosen_row and not app.state.chosen_row.live)
        await pilot.press("c", "y")
        assert daemon.cancelled == [OVER], "it is over"
        assert len(app.screen_stack) == 1


async def test_submit() -> None:
    async with opened() as (pilot, app, daemon, _):
        await pilot.press("s", "ctrl+s")
        assert isinstance(app.screen, Submit), "an empty problem is not sent"
        await pilot.press(*"2+2?", "tab", "x", "ctrl+s")
        assert isinstance(app.screen, Submit), "beam-16x is no search"
        assert daemon.submitted == []
        await pilot.press("backspace", "backspace", "backspace", "4", "enter")
        await until(pilot, lambda: daemon.submitted)
        assert daemon.submitted == [{"problem": "2+2?", "strategy": "beam", "n": 4}]
        await until(pilot, lambda: app.state.chosen == "run-new1")
        app.state = replace(app.state, runs=())
        await pilot.press("c", "y")
        await until(pilot, lambda: daemon.cancelled == ["run-new1"])
        await pilot.press("s", "escape", "s", *"2+2?", "tab", "tab", "tab", "x")
        names = [str(name.render()) for name in app.screen.query(".field-name")]
        assert names == ["Problem", "Search", "Seed", "Time limit", "Pair"]
        assert app.screen.query_one("#pair", Input).placeholder == "bundled"
        await pilot.click("#send")
        assert "A seed is a whole number" in str(app.screen.query_one("#wrong").render())
        app.screen.query_one("#seed").focus()
        await pilot.press("backspace", "7", "tab", *"2.5", "tab", *"mine")
        await pilot.click("#send")
        await until(pilot, lambda: len(daemon.submitted) > 1)
        more = {"n": 16, "seed": 7, "deadline_s": 2.5, "pair": "mine"}
        assert daemon.submitted[1:] == [{"problem": "2+2?", "strategy": "beam", **more}]


@pytest.mark.parametrize(
    ("draft", "wrong"),
    [
        (Draft(), "Type a problem first."),
        (Draft(problem="x", search="beam 16"), "A search is like beam-16."),
        (Draft(problem="x", seed="-1"), "A seed is a whole number, or empty."),
        (Draft(problem="x", limit_s="1h"), "A time limit is a number of seconds, or empty."),
        (Draft(problem="x", limit_s="inf"), "A time limit is a number of seconds, or empty."),
    ],
)
def test_a_draft_says_what_is_wrong(draft: Draft, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        draft.build_body()


async def test_keys_typed_ahead_go_where_they_belong() -> None:
    async with opened() as (pilot, app, daemon, _):
        for key in ("s", *"2+2?", "tab", *["backspace"] * 7, *"dvts-4", "ctrl+s"):
            name = _NAMES.get(key, key)
            app.post_message(events.Key(name, key if len(key) == 1 else None))
        await until(pilot, lambda: daemon.submitted)
        assert daemon.submitted == [{"problem": "2+2?", "strategy": "dvts", "n": 4}]
        await until(pilot, lambda: len(app.screen_stack) == 1)
        for key in ("slash", *"quit"):
            app.post_message(events.Key(key, "/" if key == "slash" else key))
        await until(pilot, lambda: app.query_one(RunList).filter == "quit")
        assert app.is_running, "q did not reach the dashboard"


async def test_the_marked_step_is_shown_whole_and_can_be_copied() -> None:
    async with opened() as (pilot, app, _, _):
        app.query_one(BeamTree).focus()
        await pilot.press("b")
        await pilot.pause(0.2)
        step = app.query_one(StepPanel)
        assert "node 109" in str(step.border_title)
        assert "\\boxed{46}" in str(step.query_one("#step-text").render())
        await pilot.press("y")
        assert app.clipboard == "Day 6 was the last. The answer is \\boxed{46}."
        await pilot.press("Y")
        assert app.clipboard == "46"
        await pilot.mouse_down("#step-text", offset=(0, 1))
        await pilot.hover("#step-text", offset=(9, 1))
        await pilot.mouse_up("#step-text", offset=(9, 1))
        await pilot.press("ctrl+c")
        assert app.clipboard.startswith("Day 6 was"), "marked with the mouse"


async def test_the_palette_does_what_a_key_does() -> None:
    async with opened() as (pilot, app, _, _):
        commands = {c.title for c in app.get_system_commands(app.screen)}
        assert commands == {c.title for c in COMMANDS if c.title} | {"Theme"}
        await pilot.press("ctrl+p", *"pruned")
        await until(pilot, lambda: app.screen.query_one(CommandList).option_count == 1)
        tree = app.query_one(BeamTree)
        assert tree.shows_dropped
        await pilot.press("enter")
        await until(pilot, lambda: not tree.shows_dropped)


async def test_the_dialog_offers_what_the_daemon_serves_and_keeps_a_refused_text() -> None:
    async with opened() as (pilot, app, daemon, _):
        await pilot.press("s", *"2+2?", "tab", "home", *"x", "enter")
        await until(pilot, lambda: isinstance(app.screen, Submit) and app.screen._error)
        assert app.screen.query_one("#problem-field", TextArea).text == "2+2?"
        assert app.screen.query_one("#search", Input).value == "xbeam-16"
        assert "no strategy 'xbeam'; known: beam," in str(app.screen.query_one("#wrong").render())
        assert app.focused is app.screen.query_one("#search")
        await pilot.press("tab", "down", "enter", "enter")
        await until(pilot, lambda: daemon.submitted)
        assert daemon.submitted == [{"problem": "2+2?", "strategy": "best_of_n", "n": 16}]
        daemon.strategies = ("beam", "mine")  # another daemon, which serves a program of its own
        daemon.go(down=True)
        await until(pilot, lambda: app.state.lost)
        daemon.go(down=False)
        await until(pilot, lambda: app.state.strategies == ("beam", "mine"))
        await pilot.press("s", *"2+2?", "tab", "tab", "end", "enter", "enter")
        await until(pilot, lambda: len(daemon.submitted) > 1)
        assert daemon.submitted[1] == {"problem": "2+2?", "strategy": "mine", "n": 16}


async def test_a_replay_at_every_speed() -> None:
    async with opened() as (pilot, app, _, clock):
        await pilot.press("r")
        await until(pilot, lambda: app.state.replay is not None)
        assert app.state.shown is not None
        speeds = []
        for _ in range(4):
            assert app.state.replay is not None
            speeds.append(app.state.replay.speed)
            await pilot.press("r")
        assert speeds == [1, 4, 16, 1]
        clock.now += 0.25
        await until(pilot, lambda: app.state.shown and 0 < app.state.shown.seq < 267)
        clock.now += 60
        await until(pilot, lambda: app.state.replay is not None and app.state.replay.over)
        assert app.state.shown == app.state.trees[OVER]
        await pilot.press("escape")
        assert app.state.replay is None


async def test_export(tmp_path: Path) -> None:
    async with opened() as (pilot, app, _, _):
        for name in ("tree.svg", "tree.json"):
            await pilot.press("e")
            app.screen.query_one("#value", Input).value = str(tmp_path / name)
            await pilot.press("enter")
            await until(pilot, (tmp_path / name).exists)
        assert json.loads((tmp_path / "tree.json").read_text())["answer"] == "46"
        assert (tmp_path / "tree.svg").read_text().startswith("<svg")
        for name in (str(tmp_path / "no folder" / "x.svg"), "~no-such-user/x.svg"):
            await pilot.press("e")
            app.screen.query_one("#value", Input).value = name
            await pilot.press("enter", "e", "escape")
            assert app.is_running


async def test_follow_goes_with_the_newest_node() -> None:
    async with opened("running") as (pilot, app, daemon, _):
        tree = app.query_one(BeamTree)
        tree.focus()
        assert tree.following
        daemon.send(OVER, rig.live_items()[200:230])
        await until(pilot, lambda: tree.selected == app.state.trees[OVER].latest)
        await pilot.press("up")
        assert not tree.following
        here = tree.selected
        daemon.send(OVER, rig.live_items()[230:])
        await until(pilot, lambda: app.state.trees[OVER].over)
        await pilot.pause(0.2)
        assert tree.selected == here, "the cursor stays on its node"
        await pilot.press("f")
        assert tree.selected == app.state.trees[OVER].best


async def test_follow_goes_to_a_run_that_begins() -> None:
    async with opened() as (pilot, app, daemon, _):
        begun = rig.summary("run-begun", "running", created_at=99.0)
        daemon.begin(begun, rig.live_items()[:50])
        runs = app.query_one(RunList)
        await until(pilot, lambda: runs.items[runs.cursor].id == "run-begun")
        await pilot.press("down")
        assert app.state.chosen == OVER
        second = rig.summary("run-second", "running", created_at=99.5)
        daemon.begin(second, rig.live_items()[:50])
        await until(pilot, lambda: len(app.state.runs) == 4)
        assert app.state.chosen == OVER, "the user chose it"
        await pilot.press("f")
        assert app.state.chosen == "run-second"


async def test_the_log_takes_the_steps_place_and_is_filtered_by_category() -> None:
    async with opened(size=(80, 24)) as (pilot, app, _, _):
        log, step = app.query_one(EventLogPanel), app.query_one(StepPanel)
        assert (log.display, step.display) == (False, True)
        await pilot.press("l")
        await pilot.pause(0.2)
        assert (log.display, step.display) == (True, False)
        counts = {"all": 163, "steps": 160, "certainty": 1, "memory": 0, "errors": 0}
        for category, count in counts.items():
            assert (log.category, log.count) == (category, count)
            await pilot.press("v")
        assert log.category == "all"
        assert "264 steps · 1 certainty" in str(log.border_subtitle)
        drawn = [log.draw_line(i, 80).plain[6:] for i in range(log.count)]
        assert "level 1: 16 scores, best 0.95, mean 0.95" in drawn


async def test_moving_collapsing_hiding_and_choosing_by_key_and_by_click() -> None:
    async with opened() as (pilot, app, _, _):
        tree = app.query_one(BeamTree)
        tree.focus()
        before = tree.count
        await pilot.press("home", "space")
        assert tree.count < before
        await pilot.press("right")
        assert tree.count == before
        await pilot.press("down", "left", "end")
        assert tree.cursor == tree.count - 1
        await pilot.press("pageup", "pagedown", "k", "j", "b")
        assert tree.selected == app.state.trees[OVER].best
        before = tree.count
        await pilot.press("p")
        assert tree.count < before
        await pilot.press("p")
        assert tree.count == before
        app.query_one(RunList).focus()
        await pilot.press("down")
        await until(pilot, lambda: app.state.shown is not None and app.state.shown.id == OTHER)
        await pilot.click(RunList, offset=(5, 1))
        await pilot.pause()
        assert app.state.chosen == OVER


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.tui.app.RETRIES", RetryPolicy(first_s=0.05, longest_s=0.2))


async def test_a_lost_daemon_shows_and_its_run_is_resumed() -> None:
    items = rig.live_items()
    daemon = rig.FakeDaemon(rig.summary(OVER, "running"), items=items[:100])
    async with rig.opened(daemon, (80, 24)) as (pilot, app):
        await until(pilot, lambda: app.state.trees.get(OVER) and app.state.trees[OVER].seq > 50)
        bar, before = app.query_one("#status"), app.state.trees[OVER]
        daemon.go(down=True)
        await until(pilot, lambda: app.state.lost)
        await until(pilot, lambda: "daemon lost" in str(bar.render()))
        assert "flashedge up" in str(bar.render()) or "no daemon" in str(bar.render())
        assert app.state.trees[OVER] == before, "everything received before stays"
        daemon.logs[OVER].extend(items[100:])  # it went on meanwhile
        daemon.listing[0]["status"] = "finished"
        daemon.go(down=False)
        await until(pilot, lambda: app.state.daemon)
        await until(pilot, lambda: app.state.trees[OVER].over)
        assert app.state.trees[OVER].tokens == 2572
        assert daemon.asked_after[-1] == before.seq


async def test_the_dashboard_waits_for_a_daemon() -> None:
    daemon = rig.FakeDaemon()
    daemon.go(down=True)
    async with rig.opened(daemon, (80, 24)) as (pilot, app):
        await until(pilot, lambda: app.state.lost)
        await pilot.press("c", "r", "e", "f", "p", "down", "b")
        daemon.go(down=False)
        await until(pilot, lambda: app.state.daemon)


async def test_an_interrupted_run_is_replayed_as_far_as_it_went() -> None:
    daemon = rig.FakeDaemon(rig.summary(OVER, "interrupted"), items=rig.live_items()[:100])
    async with rig.opened(daemon, (80, 24)) as (pilot, app):
        await until(pilot, lambda: app.state.trees.get(OVER) and app.state.trees[OVER].over)
        await pilot.press("r")
        await until(pilot, lambda: app.state.replay is not None)


async def test_a_removed_run_is_reported_once() -> None:
    daemon = rig.FakeDaemon(rig.summary(OVER, "finished"))
    del daemon.logs[OVER]
    async with rig.opened(daemon, (80, 24)) as (pilot, app):
        await until(pilot, lambda: app.state.trees.get(OVER))
        await pilot.pause(0.3)
        assert len(app._notifications) == 1
