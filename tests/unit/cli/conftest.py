"""Commands with folders of their own, and a daemon that they find running."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli_rig import Cli, Done, Patch, cli_for, with_daemon
from tests.support.fake_daemon import FakeDaemon


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: Patch) -> FakeDaemon:
    return with_daemon(monkeypatch, FakeDaemon())


@pytest.fixture
def talk(cli: Cli, daemon: FakeDaemon, monkeypatch: Patch) -> Callable[..., Done]:
    """Types the lines of a text into `chat`, with options. Its input is no terminal."""

    def talk(typed: str, *options: str, code: int = 0) -> Done:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return cli.ends(code, "", "chat", *options)

    return talk
