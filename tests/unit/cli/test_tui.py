"""The way to the dashboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashedge.cli import tui
from flashedge.daemon import control
from flashedge.errors import ConfigError
from flashedge.tui.app import DashboardApp
from tests.support.cli_rig import Patch
from tests.support.screen import open_screen


class _Found:
    url = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path))
    monkeypatch.setattr(tui, "check_terminal", lambda: None)


def test_something_is_shown_before_the_dashboard_is_there(monkeypatch: Patch) -> None:
    def stop(config: object) -> None:
        raise ConfigError("no daemon for this test")

    monkeypatch.setattr(control, "find", stop)
    screen = open_screen(monkeypatch)
    with pytest.raises(ConfigError, match="no daemon for this test"):
        tui.tui()
    assert "opening the dashboard" in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.printed)


def test_the_theme_is_remembered_in_the_state_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    opened: list[DashboardApp] = []
    monkeypatch.setattr(control, "find", lambda config: _Found())
    monkeypatch.setattr(DashboardApp, "run", lambda self: opened.append(self))
    open_screen(monkeypatch)
    tui.tui()
    assert opened[0]._theme_file == tmp_path / "state" / "dashboard-theme"
