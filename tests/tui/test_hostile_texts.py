"""No text from outside acts on the dashboard, whichever widget shows it."""

import asyncio
import importlib
import json
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.color import Color
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static, TextArea

from flashedge import tui
from flashedge.client.run_view import Numbered, RunView, fold
from flashedge.errors import DaemonError, RequestError
from flashedge.events import from_json, to_json
from flashedge.literal import show_in_line
from flashedge.tui import export
from flashedge.tui.app import DashboardApp
from flashedge.tui.widgets.answer import AnswerPanel
from flashedge.tui.widgets.bars import KEYS
from flashedge.tui.widgets.beam_tree import BeamTree
from flashedge.tui.widgets.dialogs import AskLine, Confirm, Help, Submit
from flashedge.tui.widgets.panel import ActingFilter, LiteralTitles
from flashedge.tui.widgets.runs import RunList
from flashedge.tui.widgets.texts import StepPanel
from tests.support import dashboard_rig as rig
from tests.support.hostile import HOSTILE, acting_texts, find_acting, poison
from tests.tui.test_keys import until

RUN, PAST = "run-now", "run-past"
SIZES = ((80, 24), (120, 40), (200, 60))
OWN_ACTIONS = {f"app.{action}" for _, _, action in KEYS}


def poison_items(items: list[Numbered], *texts: str) -> list[Numbered]:
    turns = zip(items, cycle(texts), strict=False)
    return [(number, from_json(poison(to_json(event), text))) for (number, event), text in turns]


class HostileDaemon(rig.FakeDaemon):
    """Every object that it sends has one of the texts in turn behind its strings, and it refuses
    every problem with all of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        rows = rig.summary(RUN, "running"), rig.summary(PAST, "finished", answer="46")
        self.turns, self.text = cycle(texts), "".join(texts)
        super().__init__(*(poison(row, next(self.turns)) for row in rows))
        self.strategies = (*self.strategies, f"own{self.text}")
        self.send(RUN, poison_items(rig.live_items()[:200], *texts))
        self.send(PAST, poison_items(rig.stored_items(), *texts))

    async def status(self) -> dict[str, Any]:
        status = {**await super().status(), "detail": "bad"}
        found: dict[str, Any] = poison(status, next(self.turns))
        found["engines"]["verifier"]["state"] = f"dead{self.text}"
        return found

    async def submit(self, _: object) -> dict[str, Any]:
        raise RequestError(f"no {self.text}", hint=self.text)

    cancel = submit

    def _check(self) -> None:
        if self.down:
            raise DaemonError(self.text, hint=self.text)


@dataclass
class Seen:
    mark: str

    classes: set[type] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)
    """Parts of lines that only the last step before the terminal made harmless."""

    async def look(self, pilot: Pilot[None]) -> None:
        """Check all that is on the screen."""
        app = cast("DashboardApp", pilot.app)

        def shows_mark() -> bool:
            return any(self.mark in strip.text for strip in app.screen._compositor.render_strips())

        await until(pilot, lambda: isinstance(app.screen, Help) or shows_mark())
        for strip in app.screen._compositor.render_strips():
            assert not find_acting(strip.text, kept=""), ascii(strip.text)
            assert cell_len(strip.text) == app.size.width, "no border moves"
            for segment in strip:
                if segment.style is not None:
                    assert set(segment.style.meta.get("@click", "").split()) <= OWN_ACTIONS
                    assert segment.style.link is None
        for widget in app.screen.walk_children(Widget, with_self=True):
            self.classes.add(type(widget))
            check_widget(widget)


def check_widget(widget: Widget) -> None:
    """A title, a tooltip or a content that Textual would read as markup is none of ours."""
    titles = (widget._border_title, widget._border_subtitle)
    assert titles == (None, None) or isinstance(widget, LiteralTitles), widget
    assert widget.tooltip is None, widget
    is_ours = not type(widget).__module__.startswith("textual.command")  # whose words are its own
    if is_ours and isinstance(widget, Static) and isinstance(widget.content, str):
        assert not widget._render_markup, widget


def watch_filter(patch: pytest.MonkeyPatch, seen: Seen) -> None:
    apply = ActingFilter.apply

    def watch(self: ActingFilter, segments: list[Segment], background: Color) -> list[Segment]:
        found = apply(self, segments, background)
        pairs = zip(segments, found, strict=True)
        seen.dropped += [a.text for a, b in pairs if a.text != b.text]
        return found

    patch.setattr(ActingFilter, "apply", watch)


async def walk(texts: Sequence[str], size: tuple[int, int], folder: Path, seen: Seen) -> None:
    daemon, clock = HostileDaemon(texts), rig.Clock()
    async with rig.opened(daemon, size, clock) as (pilot, app):
        await until(pilot, lambda: app.state.shown is not None and app.state.shown.seq > 100)
        await until(pilot, lambda: app.query_one(BeamTree).count and app.state.devices)
        await seen.look(pilot)
        await walk_filters(pilot, app, daemon.text, seen)
        await walk_dialogs(pilot, app, daemon.text, folder, seen)
        app.query_one(RunList).focus()
        await pilot.press("down", "l", "v")
        await until(pilot, lambda: app.state.chosen == PAST)
        await until(pilot, lambda: app.state.shown is not None and app.state.shown.over)
        app.query_one(BeamTree).action_best()
        await pilot.pause()
        await seen.look(pilot)
        await pilot.press("l", "r")
        await until(pilot, lambda: app.state.replay is not None)
        clock.now += 60
        await until(pilot, lambda: app.state.replay is not None and app.state.replay.over)
        await seen.look(pilot)
        await pilot.press("escape")
        daemon.go(down=True)
        await until(pilot, lambda: app.state.lost)
        await pilot.pause(0.1)
        await seen.look(pilot)


async def type_in(pilot: Pilot[None], *typed: str, text: str = "") -> None:
    """Press the keys, then paste the text."""
    await pilot.press(*typed)
    if text:
        pilot.app.post_message(events.Paste(text))
    await pilot.pause()


async def walk_filters(pilot: Pilot[None], app: DashboardApp, text: str, seen: Seen) -> None:
    for panel in (app.query_one(RunList), app.query_one(BeamTree)):
        panel.focus()
        await type_in(pilot, "slash", text=text)
        await seen.look(pilot)
        panel.set_filter(text)  # whoever else sets it
        await pilot.pause()
        await seen.look(pilot)
        await pilot.press("escape")


async def walk_dialogs(
    pilot: Pilot[None], app: DashboardApp, text: str, folder: Path, seen: Seen
) -> None:
    steps: tuple[tuple[list[str], str, type[Screen[Any]]], ...] = (
        (["ctrl+p"], text, CommandPalette),
        (["escape", "escape", "question_mark"], "", Help),
        (["escape", "c"], "", Confirm),
        (["y", "s", "x"], text, Submit),
    )
    for keys, pasted, screen in steps:
        await type_in(pilot, *keys, text=pasted)
        assert isinstance(app.screen, screen)
        await seen.look(pilot)
    await pilot.press("ctrl+s")
    await until(pilot, lambda: isinstance(app.screen, Submit) and app.screen._error)
    await pilot.pause()
    await seen.look(pilot)
    await pilot.press("escape", "e")
    assert isinstance(app.screen, AskLine)
    app.screen.query_one(Input).value = ""
    await type_in(pilot, text=f"{folder}/no folder/{text}")
    await type_in(pilot, "enter")
    app.notify(text, title=text, markup=True)
    for dialog in (Confirm(text), AskLine(text, text, text)):
        app.push_screen(dialog)
        await pilot.pause()
        await seen.look(pilot)
        await pilot.press("escape")


def walk_alone(texts: Sequence[str], size: tuple[int, int], folder: Path, mark: str = "") -> Seen:
    seen = Seen(mark)
    with pytest.MonkeyPatch.context() as patch:
        watch_filter(patch, seen)
        asyncio.run(walk(texts, size, folder, seen))
    return seen


def list_widgets() -> set[type[Widget]]:
    """Those of ours that no other of ours derives from."""
    for module in pkgutil.walk_packages(tui.__path__, f"{tui.__name__}."):
        importlib.import_module(module.name)
    kinds: list[type[Widget]] = [Widget]
    for kind in kinds:
        kinds += kind.__subclasses__()  # which the loop visits, too
    ours = {kind for kind in kinds if kind.__module__.startswith(tui.__name__)}
    return {kind for kind in ours if ours.isdisjoint(kind.__subclasses__())}


@pytest.mark.parametrize("size", SIZES)
def test_no_text_acts_in_any_widget(size: tuple[int, int], tmp_path: Path) -> None:
    text = " ".join((HOSTILE[0], *HOSTILE[3:12]))
    seen = walk_alone([text], size, tmp_path, mark="␛")
    assert list_widgets() <= seen.classes, "a widget that this walk does not show"
    assert not seen.dropped, "shown by a widget that does not make it visible"


@settings(max_examples=4, deadline=None)
@given(st.lists(acting_texts, min_size=3, max_size=3))
@example(["\u200d"])
def test_any_text_is_text(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """A walk takes seconds: three texts share one."""
    seen = walk_alone(texts, SIZES[0], tmp_path_factory.mktemp("export"))
    assert not seen.dropped


def show_title(widget: Widget, app: DashboardApp) -> str:
    return app.screen._compositor.render_strips()[widget.region.y].text


async def test_an_answer_is_no_markup() -> None:
    answers = ("[a=1,b=2]", "[/]", "[link=http://x]y", "[x]", "[A]", "[bold]")
    answers += ("[@click=app.quit]5", "\\[4]")
    rows = [rig.summary(f"run-{i}", "finished", answer=answer) for i, answer in enumerate(answers)]
    daemon = rig.FakeDaemon(*rows)
    for row, answer in zip(rows, answers, strict=True):
        daemon.send(row["id"], rig.end_with(answer=answer, text=f"\\boxed{{{answer}}}"))
    async with rig.opened(daemon) as (pilot, app):
        await until(pilot, lambda: app.state.shown is not None)
        panel, runs = app.query_one(AnswerPanel), app.query_one(RunList)
        for i, answer in enumerate(answers):
            line = f"Answer  {answer} "
            await until(pilot, lambda: line in show_title(panel, app))  # noqa: B023
            assert f"= {answer}"[:17] in runs.render_line(min(i, runs.size.height - 1)).text
            await pilot.click(BeamTree, offset=(20, 0))
            assert app.is_running
            runs.action_move(1)


async def test_a_step_keeps_its_lines_and_shows_its_controls() -> None:
    items = poison_items(rig.stored_items(), "one\r\n\ttwo\x1b[2J\u202e")
    daemon = rig.FakeDaemon(rig.summary(RUN, "finished"), items=items)
    async with rig.opened(daemon) as (pilot, app):
        await until(pilot, lambda: app.state.shown is not None and app.state.shown.over)
        words = app.query_one(StepPanel).query_one(Static)
        await until(pilot, lambda: "two" in str(words.content))
        assert str(words.content).endswith("one␍\n\ttwo␛[2J�")


async def test_a_pasted_problem_is_sent_as_it_is_shown() -> None:
    daemon = rig.FakeDaemon(rig.summary(RUN, "finished"))
    async with rig.opened(daemon) as (pilot, app):
        await pilot.press("s")
        app.post_message(events.Paste("first\r\nsecond\rthird\x1b[2J\u2028"))
        await until(pilot, lambda: app.screen.query_one(TextArea).text)
        shown = app.screen.query_one(TextArea).text
        await pilot.press("ctrl+s")
        await until(pilot, lambda: daemon.submitted)
        assert shown == daemon.submitted[0]["problem"] == "first\nsecond\nthird␛[2J␤"


@pytest.mark.parametrize("text", HOSTILE)
def test_an_exported_tree_is_valid(text: str, tmp_path: Path) -> None:
    run = fold(RunView(id=RUN), poison_items(rig.stored_items(), text))
    export.write_tree(run, tmp_path / "tree.svg")
    drawn = "".join(ElementTree.parse(tmp_path / "tree.svg").getroot().itertext())
    assert show_in_line(f"46{text}") in show_in_line(drawn)
    export.write_tree(run, tmp_path / "tree.json")
    written = (tmp_path / "tree.json").read_text(encoding="utf-8")
    assert not find_acting(written)
    assert json.loads(written)["answer"] == json.loads(json.dumps(f"46{text}"))
