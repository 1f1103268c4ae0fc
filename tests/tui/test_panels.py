"""What the panels say at each size, and in which colours: nothing that matters is cut."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from textual.filter import Monochrome
from textual.pilot import Pilot
from textual.widget import Widget

from flashedge.client.words import UNBOXED, UNLIKELY, describe_distrust
from flashedge.events import RunCancelled, RunFailed, from_json, to_json
from flashedge.tui.app import DashboardApp
from flashedge.tui.colours import ON_LIGHT, OURS, SCALE
from flashedge.tui.widgets.dialogs import Confirm
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.texts import ProblemPanel
from tests.support import dashboard_rig as rig
from tests.tui.test_keys import until

RUN = "run-shown"
SIZES = ((80, 24), (120, 40), (200, 60))
PROBLEM = rig.recorded()[0]["problem"]


@asynccontextmanager
async def watching(
    items: list[rig.Numbered],
    size: tuple[int, int],
    status: str = "finished",
    *,
    daemon: rig.FakeDaemon | None = None,
    theme_file: Path | None = None,
    **row: Any,
) -> AsyncIterator[tuple[Pilot[None], DashboardApp]]:
    daemon = daemon or rig.FakeDaemon()
    daemon.begin(rig.summary(RUN, status, **row), items)
    async with rig.opened(daemon, size, theme_file=theme_file) as (pilot, app):
        await until(pilot, lambda: app.state.shown and app.state.shown.seq >= items[-1][0])
        await until(pilot, lambda: app.state.devices)
        await pilot.pause(0.2)
        yield pilot, app


def read(app: DashboardApp, widget: str | type[Widget] | None = None) -> str:
    """The words on the screen, or within a widget, one blank between them."""
    strips = app.screen._compositor.render_strips()
    region = app.screen.region if widget is None else app.query_one(widget).region  # type: ignore[call-overload]
    lines = [strips[y].text[region.x : region.right] for y in range(region.y, region.bottom)]
    return " ".join(" ".join(lines).replace("│", " ").split())


async def show_each_size(pilot: Pilot[None], app: DashboardApp) -> AsyncIterator[int]:
    for size in SIZES:
        await pilot.resize_terminal(*size)
        before, shown = "", read(app)
        while shown != before:
            await pilot.pause(0.1)
            before, shown = shown, read(app)
        yield size[0]


LONG = " ".join(f"word {i}" for i in range(400))
ERROR = "the generator ran out of memory while it computed a batch of 16 requests, and again"
STOPPED = "The run was stopped early by its deadline."


@pytest.mark.parametrize(
    ("items", "status", "parts"),
    [
        (
            rig.end_with(trusted=False, unboxed=True, cut_by="deadline"),
            "finished",
            ("Answer", describe_distrust(0.7462), UNBOXED, STOPPED),
        ),
        (
            rig.end_with(answer=LONG, unlikely=True, votes=[]),
            "finished",
            ("Answer", "word 0 word 1", "…", UNLIKELY),
        ),
        (
            [*rig.live_items()[:100], (101, RunFailed(error=ERROR, code="engine_dead"))],
            "failed",
            (f"! failed: {ERROR}",),
        ),
        (rig.live_items()[:60], "running", ("Answer none yet",)),
    ],
    ids=["warnings", "a long answer", "a failure", "no answer yet"],
)
async def test_an_answer_and_its_warnings_are_not_cut(
    items: list[rig.Numbered], status: str, parts: tuple[str, ...]
) -> None:
    says = re.compile(".*".join(map(re.escape, parts)) + "[ ─]*")  # and a frame
    async with watching(items, SIZES[0], status) as (pilot, app):
        async for _ in show_each_size(pilot, app):
            await until(pilot, lambda: says.fullmatch(read(app, "#answer")))


async def test_an_engine_that_is_unwell_comes_first() -> None:
    daemon, why = rig.FakeDaemon(), "the verifier died of a CUDA error in a step of 4,096 tokens"
    daemon.told = {"state": "degraded", "detail": f"{why}; it is restarted in 8 s"}
    async with watching(rig.stored_items(), SIZES[0], daemon=daemon) as (pilot, app):
        async for _ in show_each_size(pilot, app):
            shown = read(app, "#status")
            assert "4,096 tokens; it is restarted in 8 s" in shown
            assert shown.index("verifier died") < shown.index("running")


async def test_the_problem_opens_in_a_small_terminal_while_it_is_focused() -> None:
    async with watching(rig.stored_items(), SIZES[0]) as (pilot, app):
        panel = app.query_one(ProblemPanel)
        assert read(app, ProblemPanel).startswith(f"Problem {PROBLEM[:60]}")
        assert panel.size.height == 1
        await pilot.press("tab")
        await until(pilot, lambda: PROBLEM in read(app, ProblemPanel))
        await pilot.press("tab")
        await until(pilot, lambda: panel.size.height == 1)
        await until(pilot, lambda: read(app, ProblemPanel).endswith("…"))


async def test_a_long_problem_is_scrolled() -> None:
    text = " ".join(f"sentence {i}." for i in range(200))
    started = deepcopy(to_json(rig.stored_items()[0][1]))
    started["config"]["problem"]["messages"][-1]["content"] = text
    items = [(1, from_json(started)), *rig.stored_items()[1:]]
    async with watching(items, (120, 40), problem=text[:200]) as (pilot, app):
        assert "sentence 199." not in read(app, ProblemPanel)
        await pilot.press("tab", "end")
        await until(pilot, lambda: "sentence 199." in read(app, ProblemPanel))


async def test_a_run_that_was_cancelled_in_the_queue_says_so() -> None:
    items: list[rig.Numbered] = [(1, RunCancelled(reason="cancelled by request"))]
    problem = "A problem of its own."
    async with watching(items, SIZES[0], "cancelled", problem=problem) as (pilot, app):
        async for _ in show_each_size(pilot, app):
            assert "cancelled before it started" in read(app)
            assert problem in read(app, ProblemPanel)
            assert "no tree: the run ended before its first step" in read(app)


async def test_problems_that_begin_alike_are_told_apart() -> None:
    begin = "Noa has 85 shells. Day 1: gets 11. Day 2: drops 81. Day 3: wins "
    rows = [rig.summary(f"run-{i}", "finished", problem=f"{begin}{i}4. The end.") for i in range(3)]
    rows.append(rig.summary("run-3", "finished", problem=rows[0]["problem"]))
    async with watching(rig.stored_items(), (120, 40), daemon=rig.FakeDaemon(*rows)) as (_, app):
        runs = app.query_one(RunList)
        drawn = [runs.draw_line(i, 74).plain for i in range(1, 5)]
        ends = [line[line.index("…") + 2 :][:12] for line in drawn]
        assert ends == [f"{number}4. The end." for number in (0, 1, 2, 0)]
        assert all(line[2:].startswith("done  Noa has 85…") for line in drawn)


async def test_a_question_is_withdrawn_when_its_run_ends() -> None:
    daemon, live = rig.FakeDaemon(), rig.live_items()
    async with watching(live[:200], (120, 40), "running", daemon=daemon) as (pilot, app):
        await pilot.press("c")
        assert isinstance(app.screen, Confirm)
        daemon.send(RUN, live[200:])
        await until(pilot, lambda: not isinstance(app.screen, Confirm))
        assert daemon.cancelled == []


def use_memory(daemon: rig.FakeDaemon, generator: int, verifier: int) -> None:
    """Set the used blocks of 2,047 and 1,023."""
    engines = {"generator": rig.engine(generator, 2047), "verifier": rig.engine(verifier, 1023)}
    daemon.told["engines"] = engines


async def test_kv_memory_takes_a_line_when_it_is_full_and_idle_engines_share_one() -> None:
    daemon = rig.FakeDaemon()
    use_memory(daemon, 2000, 1)
    async with watching(rig.stored_items(), (80, 24), daemon=daemon) as (pilot, app):
        assert read(app, "#memory").startswith("KV gen")
        assert "98%" in read(app, "#memory")
        use_memory(daemon, 0, 0)
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: read(app, "#memory") == "KV gen 0% ver 0% split 67:33")


def list_colours(app: DashboardApp) -> set[str]:
    """Names of the colours on the screen's lines, as they go to the terminal."""
    found = set()
    for strip in app.screen._compositor.render_strips():
        for line_filter in app.get_line_filters():
            strip = strip.apply_filter(line_filter, app.screen.background_colors[1])
        for segment in strip:
            if segment.style is not None and segment.style.color is not None:
                found.add(segment.style.color.name)
    return found


async def test_scores_are_dark_on_a_light_theme() -> None:
    async with watching(rig.stored_items(), (120, 40)) as (pilot, app):
        assert app.theme == OURS.name
        assert SCALE[-1] in list_colours(app)
        app.theme = "textual-light"
        await pilot.pause(0.1)
        colours = list_colours(app)
        assert ON_LIGHT[SCALE[-1]] in colours
        assert not colours & {*SCALE}
        for theme in ("textual-dark", "ansi-light", "solarized-light", "gruvbox"):
            app.theme = theme
            await pilot.pause()
            assert "Answer 46" in read(app, "#answer"), "every kind of theme can be drawn"


async def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with watching(rig.stored_items(), (120, 40)) as (pilot, app):
        assert any(isinstance(one, Monochrome) for one in app.get_line_filters())
        for theme in (OURS.name, "textual-light"):
            app.theme = theme
            await pilot.pause(0.1)
            for name in list_colours(app) - {"default"}:
                assert name[1:3] == name[3:5] == name[5:7], name


async def test_the_theme_is_remembered_and_one_that_is_not_known_is_ours(tmp_path: Path) -> None:
    file = tmp_path / "new" / "theme"
    async with watching(rig.stored_items(), (120, 40), theme_file=file) as (pilot, app):
        assert not file.exists()
        await pilot.press("ctrl+p", *"theme", "enter", *"nord", "enter")
        await until(pilot, lambda: app.theme == "nord")
        await until(pilot, file.exists)
    async with watching(rig.stored_items(), (120, 40), theme_file=file) as (_, app):
        assert app.theme == "nord"
    for content in (b"", b"\xff\xfe", b"no such theme\n"):
        file.write_bytes(content)
        async with rig.opened(rig.FakeDaemon(), theme_file=file) as (_, app):
            assert app.theme == OURS.name, content


async def test_a_theme_that_cannot_be_remembered_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "theme"
    async with watching(rig.stored_items(), (120, 40), theme_file=file) as (pilot, app):
        app.theme = "nord"
        await until(pilot, lambda: app._notifications)
        (notice,) = app._notifications
        assert notice.message.startswith("Can't remember the theme")
        await asyncio.sleep(0)
        assert app.theme == "nord"


async def test_the_machine_says_how_fast_requests_were() -> None:
    daemon = rig.FakeDaemon()
    use_memory(daemon, 900, 120)
    drafts = {"drafted_tokens": 8, "accepted_tokens": 3}
    daemon.told["engines"]["generator"]["view"] |= {"cache_hits": 0.84, "token_drafts": drafts}
    first, each = {"p50": 0.12, "p90": 0.4}, {"p50": 0.008, "p90": 0.015}
    found = {"requests": 9, "first_token_s": first, "token_s": each}
    user = {"card": 0, "pid": 7, "name": "ollama", "memory_bytes": 3 << 30}
    daemon.told["latency"] = {"chat": found, "run": {**found, "requests": 3}}
    daemon.told["pairs"] = {"bundled": {"card_users": [user]}}
    async with watching(rig.stored_items(), SIZES[0], daemon=daemon) as (pilot, app):
        async for columns in show_each_size(pilot, app):
            is_small = columns == 80
            words = ("Certainty",) if is_small else ("Cache hits", "Held by")
            await until(pilot, lambda words=words: all(word in read(app) for word in words))
            shown = read(app)
            assert ("1st token chat 0.12, p90 0.4 s" in shown) != is_small
            assert ("Next token chat 8, p90 15 ms" in shown) != is_small
            assert ("· search 8, p90 15 ms" in shown) == (columns == 200)
            assert ("Cache hits gen 84% · drafts right 38%" in shown) != is_small
            assert ("Held by ollama 3.0 GiB" in shown) != is_small
