"""Commands with folders of their own, and a daemon that they find running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_rig import Cli, cli_for, with_daemon
from tests.support.fake_daemon import FakeDaemon


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    return with_daemon(monkeypatch, FakeDaemon())
