"""A daemon that goes away and comes back."""

from __future__ import annotations

import pytest

from flashedge.client.follow import RetryPolicy
from flashedge.client.run_view import CUT
from flashedge.errors import RunInterrupted
from flashedge.tui.widgets.beam_tree import BeamTree
from tests.support.dashboard_rig import Clock, FakeDaemon, dashboard, live_items, summary
from tests.tui.test_keys import until

RUN = "run-a"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.tui.app.RETRIES", RetryPolicy(first_s=0.05, longest_s=0.2))


async def test_a_lost_daemon_shows_and_its_run_is_resumed() -> None:
    items = live_items()
    daemon = FakeDaemon(summary(RUN, "running"))
    daemon.send(RUN, items[:100])
    app = dashboard(daemon, Clock())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].seq > 50)
        bar, before = app.query_one("#status"), app.state.trees[RUN]
        daemon.go(down=True)
        await until(pilot, lambda: app.state.lost)
        await until(pilot, lambda: "daemon lost" in str(bar.render()))
        assert "flashedge up" in str(bar.render()) or "no daemon" in str(bar.render())
        assert app.state.trees[RUN] == before, "everything received before stays"
        daemon.logs[RUN].extend(items[100:])  # it went on meanwhile
        daemon.listing[0]["status"] = "finished"
        daemon.go(down=False)
        await until(pilot, lambda: app.state.daemon)
        await until(pilot, lambda: app.state.trees[RUN].over)
        assert app.state.trees[RUN].tokens == 2572
        assert daemon.asked_after[-1] == before.seq


async def test_the_dashboard_waits_for_a_daemon() -> None:
    daemon = FakeDaemon()
    daemon.go(down=True)
    app = dashboard(daemon, Clock())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.lost)
        await pilot.press("c", "r", "e", "f", "p", "down", "b")
        daemon.go(down=False)
        await until(pilot, lambda: app.state.daemon)


async def test_an_interrupted_run_shows_its_nodes_as_cut() -> None:
    items = live_items()[:100]

    class Broken(FakeDaemon):
        async def events(self, run, after=0):  # type: ignore[no-untyped-def]
            yield tuple(items)
            raise RunInterrupted("it has no end")

    daemon = Broken(summary(RUN, "interrupted"))
    app = dashboard(daemon, Clock())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.trees.get(RUN) and app.state.trees[RUN].over)
        run = app.state.trees[RUN]
        assert run.state == "interrupted"
        assert "generating" not in {n.status for n in run.nodes.values()}
        assert CUT in {n.status for n in run.nodes.values()}
        tree = app.query_one(BeamTree)
        await until(pilot, lambda: tree.count)
        assert any("cut before its end" in str(tree.line(i, 80)) for i in range(tree.count))
        await pilot.press("r")
        await until(pilot, lambda: app.state.replay is not None)


async def test_a_removed_run_is_reported_once() -> None:
    daemon = FakeDaemon(summary(RUN, "finished"))
    del daemon.logs[RUN]
    app = dashboard(daemon, Clock())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.state.trees.get(RUN))
        await pilot.pause(0.3)
        assert len(app._notifications) == 1
