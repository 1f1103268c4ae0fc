"""Pictures of the dashboard. After an intended change run `pytest tests/tui --snapshot-update`;
look at the pictures first."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from textual.command import CommandList
from textual.pilot import Pilot
from textual.widgets import Input

from flashedge.client.run_view import RunView, fold
from flashedge.tui.app import DashboardApp
from flashedge.tui.widgets.beam_tree import FOLLOW_FRAMES, BeamTree
from flashedge.tui.widgets.dialogs import Submit
from flashedge.tui.widgets.panel import Panel
from tests.support import dashboard_rig as rig
from tests.tui.test_keys import until

SIZES = [(80, 24), (120, 40)]
LARGE = (200, 60)
RUN, QUEUED, PAST = "run-2dcea5c48dce", "run-ccc1e546379c", "run-260cd89ddfe7"

PREDICTED = {"median_tokens": 162.0, "tail_tokens": 204.0}
BEAM_ENDS = (160, 200, 235, 262)
WAITS = {"position": 0, "starts_in_s": 9.4, **PREDICTED}


def scene(status: str) -> rig.FakeDaemon:
    return rig.FakeDaemon(
        rig.summary(QUEUED, "queued", problem="Let h = 91. y = 22. p = h - y. z = p + y.", **WAITS),
        rig.summary(RUN, status, **(PREDICTED if status == "running" else {})),
        rig.summary(PAST, "finished", problem="Dan has 24 nuts. Day 1: wins 20.", answer="26"),
    )


Then = Callable[[Pilot[None], DashboardApp], Awaitable[object]]


async def settle(pilot: Pilot[None], app: DashboardApp) -> None:
    """Follow once more from the top, so that the way there doesn't show."""
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


async def sample(pilot: Pilot[None], app: DashboardApp, seconds: float) -> None:
    seen = len(app.state.samples)
    app._clock.now += seconds
    await until(pilot, lambda: len(app.state.samples) > seen)


def picture(
    compare: Any,
    size: tuple[int, int],
    daemon: rig.FakeDaemon,
    run: str = RUN,
    *,
    items: Sequence[rig.Numbered] = (),
    ends: Iterable[int] = (),
    then: Then | None = None,
    theme: str | None = None,
    settle: Then = settle,
) -> bool:
    """Whether the picture is as before, of a run with `items` up to each end, or of one that is
    over."""
    app = rig.dashboard(daemon, rig.Clock())

    async def play(pilot: Pilot[None]) -> None:
        app.theme = theme or app.theme
        await until(pilot, lambda: app.state.devices and app.state.chosen == run)
        for start, end in pairwise((0, *ends)):
            daemon.send(run, items[start:end])
            whole = fold(RunView(id=run), items[:end])
            await until(pilot, lambda whole=whole: app.state.trees.get(run) == whole)
            await sample(pilot, app, 1.0)
        if not items:
            await until(pilot, lambda: app.state.trees.get(run) and app.state.trees[run].over)
        if then is not None:
            await then(pilot, app)
        await settle(pilot, app)

    return bool(compare(app, terminal_size=size, run_before=play))


def over(items: list[rig.Numbered], status: str = "finished") -> rig.FakeDaemon:
    daemon = scene(status)
    daemon.listing.pop(0)
    daemon.send(RUN, items)
    return daemon


def quarters(items: list[rig.Numbered], count: int) -> list[int]:
    return [len(items) * quarter // 4 for quarter in range(1, count + 1)]


@pytest.mark.parametrize("size", [*SIZES, LARGE])
def test_a_beam_run(snap_compare: Any, size: tuple[int, int]) -> None:
    assert picture(snap_compare, size, scene("running"), items=rig.live_items(), ends=BEAM_ENDS)


def test_a_light_theme(snap_compare: Any) -> None:
    live = {"items": rig.live_items(), "ends": BEAM_ENDS}
    assert picture(snap_compare, (120, 40), scene("running"), **live, theme="textual-light")


@pytest.mark.parametrize("size", SIZES)
def test_an_mcts_run(snap_compare: Any, size: tuple[int, int]) -> None:
    run, items = "run-fd3576bddf2a", rig.live_items(rig.MCTS)
    daemon = rig.FakeDaemon(rig.summary(run, "running", rig.MCTS), rig.summary(PAST, "finished"))
    assert picture(snap_compare, size, daemon, run, items=items, ends=quarters(items, 3))


@pytest.mark.parametrize("size", SIZES)
def test_a_boosted_run(snap_compare: Any, size: tuple[int, int]) -> None:
    run, items = "run-f8a7df324c10", rig.live_items(rig.BOOST)
    daemon = rig.FakeDaemon(rig.summary(run, "running", rig.BOOST), rig.summary(PAST, "finished"))
    boosts = [{"pair": "bundled", "budget": 7, "reason": "", "runs": {run: 3, PAST: 4}}]
    daemon.told = {"scheduling": {"boosts": boosts}}
    assert picture(snap_compare, size, daemon, run, items=items, ends=quarters(items, 2))


@pytest.mark.parametrize("size", SIZES)
def test_a_self_consistency_run(snap_compare: Any, size: tuple[int, int]) -> None:
    items = rig.whole_answer_items(ended=9)
    row = rig.summary(RUN, "running", strategy="self_consistency")
    daemon = rig.FakeDaemon(row, rig.summary(PAST, "finished"))
    assert picture(snap_compare, size, daemon, items=items, ends=(2, 6, len(items)))


@pytest.mark.parametrize("size", SIZES)
def test_a_queue(snap_compare: Any, size: tuple[int, int]) -> None:
    waiting = [
        rig.summary(f"run-wait{place}", "queued", position=place, starts_in_s=start_s, **PREDICTED)
        for place, start_s in ((3, None), (1, 21.0), (0, 9.4), (2, 95.0))
    ]
    daemon = rig.FakeDaemon(*waiting, rig.summary(RUN, "running", **PREDICTED))
    daemon.told = {"scheduling": {"policy": "fair_finish"}}

    async def choose(pilot: Pilot[None], app: DashboardApp) -> None:
        await pilot.press("down")
        await until(pilot, lambda: app.state.chosen == "run-wait0")

    assert picture(snap_compare, size, daemon, items=rig.live_items(), ends=(40, 60), then=choose)


def test_an_interrupted_run(snap_compare: Any) -> None:
    assert picture(snap_compare, (120, 40), over(rig.stored_items()[:163], "interrupted"))


@pytest.mark.parametrize("size", [*SIZES, LARGE])
def test_a_finished_run(snap_compare: Any, size: tuple[int, int]) -> None:
    async def look_at_the_tree(pilot: Pilot[None], app: DashboardApp) -> None:
        await pilot.press("tab", "tab")

    assert picture(snap_compare, size, over(rig.stored_items()), then=look_at_the_tree)


def test_a_doubtful_run(snap_compare: Any) -> None:
    doubtful = over(rig.end_with(trusted=False, cut_by="deadline"))
    assert picture(snap_compare, (120, 40), doubtful)


@pytest.mark.parametrize("size", SIZES)
def test_a_replay(snap_compare: Any, size: tuple[int, int]) -> None:
    async def replay(pilot: Pilot[None], app: DashboardApp) -> None:
        await pilot.press("r")
        await until(pilot, lambda: app.state.replay is not None)
        for _ in range(4):
            await sample(pilot, app, 0.7)

    assert picture(snap_compare, size, over(rig.stored_items()), then=replay)


def test_the_submit_dialog(snap_compare: Any) -> None:
    async def refuse(pilot: Pilot[None], app: DashboardApp) -> None:
        await settle(pilot, app)
        await pilot.press("s", *"2+2?", "tab", "home", *"x", "enter")
        await until(pilot, lambda: isinstance(app.screen, Submit) and app.screen._error)
        app.screen.query_one("#search", Input).cursor_blink = False
        await pilot.pause()

    assert picture(snap_compare, (80, 24), over(rig.stored_items()), settle=refuse)


def test_the_commands(snap_compare: Any) -> None:
    async def open_palette(pilot: Pilot[None], app: DashboardApp) -> None:
        await settle(pilot, app)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: app.screen.query_one(CommandList).option_count)
        app.screen.query_one(Input).cursor_blink = False
        await pilot.pause()

    assert picture(snap_compare, (120, 40), over(rig.stored_items()), settle=open_palette)
