"""What the dashboard looks like: a beam and an MCTS run under way and a replay, in two sizes.

`pytest tests/tui --snapshot-update` after a wanted change; look at the pictures first.
"""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.rig import MCTS, Clock, FakeDaemon, dashboard, live_items, stored_items, summary
from tests.tui.test_keys import until
from tui.app import DashboardApp
from tui.run_state import RunState, fold
from tui.widgets.beam_tree import FOLLOW_FRAMES, BeamTree

SIZES = [(80, 24), (120, 40)]
RUN, QUEUED, PAST = "run-2dcea5c48dce", "run-ccc1e546379c", "run-260cd89ddfe7"


def scene(status: str) -> tuple[FakeDaemon, Clock]:
    daemon = FakeDaemon(
        summary(QUEUED, "queued", problem="Let h = 91. y = 22. p = h - y. z = p + y."),
        summary(RUN, status),
        summary(PAST, "finished", problem="Dan has 24 nuts. Day 1: wins 20.", answer="26"),
    )
    daemon.positions[QUEUED] = 0
    return daemon, Clock()


async def settled(pilot: Pilot[None]) -> None:
    """Follow once more from the top: what following passed on its way, which a slow machine
    changes, does not show."""
    app = pilot.app
    assert isinstance(app, DashboardApp)
    app.tick()  # what is known is drawn
    app.query_one(BeamTree).put_cursor(0)
    for _ in range(FOLLOW_FRAMES):
        app.tick()
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES)
def test_a_beam_run(snap_compare: Any, size: tuple[int, int]) -> None:
    daemon, clock = scene("running")
    app = dashboard(daemon, clock)
    items = live_items()

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.device is not None and app.state.chosen == RUN)
        start = 0
        for end in (160, 200, 235, 262):
            daemon.send(RUN, items[start:end])
            start, whole = end, fold(RunState(id=RUN), items[:end])
            await until(pilot, lambda whole=whole: app.state.trees.get(RUN) == whole)
            seen = len(app.state.samples)
            clock.now += 1.0
            await until(pilot, lambda seen=seen: len(app.state.samples) > seen)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_an_mcts_run(snap_compare: Any, size: tuple[int, int]) -> None:
    run, items = "run-fd3576bddf2a", live_items(MCTS)
    daemon, clock = FakeDaemon(summary(run, "running", MCTS), summary(PAST, "finished")), Clock()
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.device is not None and app.state.chosen == run)
        start = 0
        for end in (len(items) // 4, len(items) // 2, 3 * len(items) // 4):
            daemon.send(run, items[start:end])
            start, whole = end, fold(RunState(id=run), items[:end])
            await until(pilot, lambda whole=whole: app.state.trees.get(run) == whole)
            seen = len(app.state.samples)
            clock.now += 1.0
            await until(pilot, lambda seen=seen: len(app.state.samples) > seen)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_replay(snap_compare: Any, size: tuple[int, int]) -> None:
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items())
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.device is not None)
        await pilot.press("r")
        await until(pilot, lambda: app.state.replay is not None)
        for _ in range(4):
            seen = len(app.state.samples)
            clock.now += 0.7
            await until(pilot, lambda seen=seen: len(app.state.samples) > seen)
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)


@pytest.mark.parametrize("size", [*SIZES, (200, 60)])
def test_a_finished_run(snap_compare: Any, size: tuple[int, int]) -> None:
    daemon, clock = scene("finished")
    daemon.listing.pop(0)
    daemon.send(RUN, stored_items())
    app = dashboard(daemon, clock)

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        await until(pilot, lambda: app.state.device is not None)
        await pilot.press("tab")
        await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=play)
