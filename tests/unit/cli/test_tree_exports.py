"""Stored trees in the terminal and in a browser, and the way to the dashboard."""

import dataclasses
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashedge.cli import daemon as daemon_commands
from flashedge.cli.solve.html_page import render_page
from flashedge.client.run_view import CUT, MEANINGS, RunView, fold
from flashedge.client.words import describe_distrust
from flashedge.daemon import control
from flashedge.errors import ConfigError
from flashedge.tui.app import DashboardApp
from tests.support.cli_rig import Patch, failing
from tests.support.dashboard_rig import stored_items
from tests.support.hostile import strip_sequences
from tests.support.screen import open_screen


class Page(HTMLParser):
    """Checks that every element is closed; keeps tags and words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def view() -> RunView:
    return fold(RunView(id="r"), stored_items())


def test_a_page_holds_the_whole_tree_and_loads_nothing(view: RunView) -> None:
    assert view.result is not None
    made = Page(render_page(view, view.result, "is 1 < 2 & <script>alert(1)</script>?"))
    assert made.open == []
    names = [tag for tag, _ in made.tags]
    assert "script" not in names
    assert not {"src", "href"} & {key for _, attrs in made.tags for key in attrs}
    assert "is 1 < 2 & <script>alert(1)</script>?" in made.words
    lines = [a for t, a in made.tags if t == "span" and "title" in a]
    assert len(lines) == len(view.nodes) - 1
    best = [a for t, a in made.tags if "best" in (a.get("class") or "").split()]
    assert len(best) == len(view.chosen)
    inner = sum(n.id in {c.parent for c in view.nodes.values()} for n in view.nodes.values()) - 1
    assert names.count("details") == inner
    for node in view.nodes.values():
        assert node.text.strip() in made.words


def test_a_page_warns_of_distrust_and_tells_cut_paths_from_whole_ones(view: RunView) -> None:
    assert view.result is not None
    end = next(n for n in view.nodes.values() if n.status == "complete")
    cut = dataclasses.replace(end, finish="length", answer=None)
    cut_view = dataclasses.replace(view, nodes={**view.nodes, end.id: cut})
    for shown, is_cut in ((view, False), (cut_view, True)):
        made = Page(render_page(shown, {**view.result, "trusted": not is_cut}, ""))
        assert (describe_distrust() in made.words) == is_cut
        assert (MEANINGS[CUT] in made.words) == is_cut, "the legend has the marks of this tree"
        assert MEANINGS["pruned"] in made.words
        classes = [attrs.get("class") for _, attrs in made.tags]
        assert classes.count("line cut") == 2 * is_cut, "the node, and its mark in the legend"


def test_a_page_of_a_run_that_failed() -> None:
    found = {"id": "r", "status": "failed", "error": {"message": "no <room>"}}
    assert "no <room>" in Page(render_page(RunView(id="r"), found, "")).words


def test_the_dashboard_loads_nothing_of_the_engine() -> None:
    code = "import sys, flashedge.tui.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {m.split(".")[1] for m in done.stdout.split() if m.startswith("flashedge.")}
    shared = {"errors", "events", "types", "literal", "sizes", "console"}
    assert found <= {*shared, "client", "tui", "profiler"}, "the profiler finds the cards"


@pytest.fixture(autouse=True)
def terminal(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path))
    monkeypatch.setattr(daemon_commands, "check_terminal", lambda: None)


def test_something_is_shown_before_the_dashboard_is_there(monkeypatch: Patch) -> None:
    monkeypatch.setattr(control, "find_daemon", failing(ConfigError("no daemon for this test")))
    screen = open_screen(monkeypatch)
    with pytest.raises(ConfigError, match="no daemon for this test"):
        daemon_commands.tui()
    assert "opening the dashboard" in strip_sequences(screen.printed)


def test_the_theme_is_remembered_in_the_state_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    opened: list[DashboardApp] = []
    monkeypatch.setattr(
        control, "find_daemon", lambda config: SimpleNamespace(url="http://127.0.0.1:1")
    )
    monkeypatch.setattr(DashboardApp, "run", lambda self: opened.append(self))
    open_screen(monkeypatch)
    daemon_commands.tui()
    assert opened[0]._theme_file == tmp_path / "state" / "dashboard-theme"
