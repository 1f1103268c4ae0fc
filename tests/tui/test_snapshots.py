"""Pictures of the dashboard: runs under way and finished, a replay, the submit dialog.

After an intended change run `pytest tests/tui --snapshot-update`; look at the pictures first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from textual.command import CommandList
from textual.pilot import Pilot
from textual.widgets import Input

from flashedge.client.run_fold import fold
from flashedge.client.run_view import RunView
from flashedge.events import from_json, to_json
from flashedge.tui.app import DashboardApp
from flashedge.tui.widgets.beam_tree import FOLLOW_FRAMES, BeamTree
from flashedge.tui.widgets.dialogs import Submit
from flashedge.tui.widgets.panel import Panel
from tests.support.dashboard_rig import (
    BOOST,
    MCTS,
    Clock,
    FakeDaemon,
    Numbered,
    dashboard,
    live_items,
    stored_items,
    summary,
    whole_answer_items,
)
from tests.tui.test_keys import until

SIZES = [(80, 24), (120, 40)]
LARGE = (200, 60)
RUN, QUEUED, PAST = "run-2dcea5c48dce", "run-ccc1e546379c", "run-260cd89ddfe7"

PREDICTED = {"median_tokens": 162.0, "tail_tokens": 204.0}
WAITS = {"position": 0, "starts_in_s": 9.4, **PREDICTED}


def scene(status: str) -> tuple[FakeDaemon, Clock]:
    daemon = FakeDaemon(
        summary(QUEUED, "queued", problem="Let h = 91. y = 22. p = h - y. z = p + y.", **WAITS),
        summary(RUN, status, **(PREDICTED if status == "running" else {})),
        summary(PAST, "finished", problem="Dan has 24 nuts. Day 1: wins 20.", answer="26"),
    )
    return daemon, Clock()


async def settled(pilot: Pilot[None]) -> None:
    """Follow once more from the top, so that the way there, which depends on the machine's speed,
    doesn't show."""
    app = pilot.app
    assert isinstance(app, DashboardApp)
    for _ in range(3):  # panels grow with what they say, and the tree has the rest
        app.tick()
        await pilot.pause(0.1)
    panels = [panel for panel in app.query(Panel) if panel.display]
    await until(
        pilot, lambda: all(p.size.height == len(str(p.render()).split("\n")) for p in panels)
    )
    app.query_one(BeamTree).put_cursor(0)
    for _ in range(FOLLOW_FRAMES):
        app.tick()
    await pilot.pause()


async def sampled(pilot: Pilot[None], clock: Clock, seconds: float) -> None:
    """Let time pass until the rates are sampled once more."""
    app = pilot.app
    assert isinstance(app, DashboardApp)
    seen = len(app.state.samples)
    clock.now += seconds
    await until(pilot, lambda: len(app.state.samples) > seen)


async def grown(
    pilot: Pilot[None],
    daemon: FakeDaemon,
    clock: Clock,
    run: str,
    items: list[Numbered],
    ends: Iterable[int],
) -> None:
    """Send the run's events up to each end, a second apart."""
    app = pilot.app
    assert isinstance(app, DashboardApp)
    start = 0
    for end in ends:
        daemon.send(run, items[start:end])
        start, whole = end, fold(RunView(id=run), items[:end])
        await until(pilot, lambda whole=whole: app.state.trees.get(run) == whole)
        await sampled(pilot, clock, 1.0)


@pytest.mark.parametrize("size", [*SIZES, LARGE])
def test_a_beam_run(snap_compare: Any, size: tuple[int, int]) -> None:
    daemon, clock = scene("running")
    app = dashboard(daemon, clock)
    items = live_items()

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.devices and app.state.chosen == RUN)
        await grown(pilot, daemon, clock, RUN, items, (160, 200, 235, 262))
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_an_mcts_run(snap_compare: Any, size: tuple[int, int]) -> None:
    run, items = "run-fd3576bddf2a", live_items(MCTS)
    daemon, clock = FakeDaemon(summary(run, "running", MCTS), summary(PAST, "finished")), Clock()
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.devices and app.state.chosen == run)
        quarters = [len(items) * quarter // 4 for quarter in (1, 2, 3)]
        await grown(pilot, daemon, clock, run, items, quarters)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_boosted_run(snap_compare: Any, size: tuple[int, int]) -> None:
    run, items = "run-f8a7df324c10", live_items(BOOST)
    daemon, clock = FakeDaemon(summary(run, "running", BOOST), summary(PAST, "finished")), Clock()
    daemon.boosts = [{"pair": "bundled", "budget": 7, "reason": "", "runs": {run: 3, PAST: 4}}]
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.devices and app.state.chosen == run)
        quarters = [len(items) * quarter // 4 for quarter in (1, 2)]
        await grown(pilot, daemon, clock, run, items, quarters)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_self_consistency_run(snap_compare: Any, size: tuple[int, int]) -> None:
    items = whole_answer_items(ended=9)
    row = summary(RUN, "running", strategy="self_consistency")
    daemon, clock = FakeDaemon(row, summary(PAST, "finished")), Clock()
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.devices and app.state.chosen == RUN)
        await grown(pilot, daemon, clock, RUN, items, (2, 6, len(items)))
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_queue(snap_compare: Any, size: tuple[int, int]) -> None:
    """Four runs wait, the chosen one among them, under a policy that is not the usual one."""
    waiting = [
        summary(f"run-wait{place}", "queued", position=place, starts_in_s=start_s, **PREDICTED)
        for place, start_s in ((3, None), (1, 21.0), (0, 9.4), (2, 95.0))
    ]
    daemon, clock = FakeDaemon(*waiting, summary(RUN, "running", **PREDICTED)), Clock()
    daemon.policy = "fair_finish"
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.devices and app.state.chosen == RUN)
        await grown(pilot, daemon, clock, RUN, live_items(), (40, 60))
        await pilot.press("down")
        await until(pilot, lambda: app.state.chosen == "run-wait0")
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


def test_an_interrupted_run(snap_compare: Any) -> None:
    daemon, clock = scene("interrupted")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items()[:163])
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.devices)
        await settled(pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=play)


def test_the_submit_dialog(snap_compare: Any) -> None:
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items())
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.devices)
        await settled(pilot)
        await pilot.press("s", *"2+2?", "tab", "home", *"x", "enter")
        await until(pilot, lambda: isinstance(app.screen, Submit) and app.screen._error)
        app.screen.query_one("#search", Input).cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_replay(snap_compare: Any, size: tuple[int, int]) -> None:
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items())
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.devices)
        await pilot.press("r")
        await until(pilot, lambda: app.state.replay is not None)
        for _ in range(4):
            await sampled(pilot, clock, 0.7)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", [*SIZES, LARGE])
def test_a_finished_run(snap_compare: Any, size: tuple[int, int]) -> None:
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items())
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.devices)
        await pilot.press("tab", "tab")
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", [*SIZES, LARGE])
def test_a_doubtful_run(snap_compare: Any, size: tuple[int, int]) -> None:
    """The verifier gives the answer a low score, and some paths are cut."""
    items = stored_items()
    number, end = items[-1]
    told = to_json(end)
    told["result"] |= {"trusted": False, "cut_by": "deadline"}
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, [*items[:-1], (number, from_json(told))])
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.devices)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


def test_a_light_theme(snap_compare: Any) -> None:
    daemon, clock = scene("running")
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        app.theme = "textual-light"
        await until(pilot, lambda: app.state.devices and app.state.chosen == RUN)
        await grown(pilot, daemon, clock, RUN, live_items(), (160, 200, 235, 262))
        await settled(pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=play)


def test_the_commands(snap_compare: Any) -> None:
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items())
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.devices)
        await settled(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: app.screen.query_one(CommandList).option_count)
        app.screen.query_one(Input).cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, terminal_size=(120, 40), run_before=play)
