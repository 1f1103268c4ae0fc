"""Runs commands in this process, with the daemon replaced by `FakeDaemon`."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from flashedge.cli.main import main
from flashedge.client.async_client import AsyncClient
from flashedge.client.sync_client import Client
from flashedge.config import Config
from flashedge.daemon import control as daemon_control
from flashedge.daemon.files import DaemonRecord
from flashedge.models import registry
from flashedge.models.specs import Pair
from flashedge.profiler.gpu import GpuCard
from tests.support.fake_daemon import FakeDaemon

Patch = pytest.MonkeyPatch
CARD = GpuCard(name="RTX 4090", driver="580.95", memory_bytes=24 << 30, free_bytes=20 << 30)


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    """A standard input that is a terminal, with what the user types; nothing by default."""

    def isatty(self) -> bool:
        return True


class Cli:
    """`cli("solve", "2 + 2")` -> Done."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str) -> Done:
        self._capfd.readouterr()
        code = main(list(arguments))
        out, err = self._capfd.readouterr()
        assert "Traceback" not in err
        return Done(code, out, err)

    def ends(self, code: int, said: str, *arguments: str) -> Done:
        """Run a command, which has to exit with `code` and to say `said` on stderr."""
        done = self(*arguments)
        assert (done.code, said in done.err) == (code, True), done
        return done


def failing(error: BaseException) -> Callable[..., Any]:
    """A function that raises `error`, whatever it is given."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def cli_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Cli:
    """Commands with folders of their own and a terminal 100 wide."""
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return Cli(capfd)


def with_daemon(monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon) -> FakeDaemon:
    record = DaemonRecord(
        pid=4242, host="127.0.0.1", port=8642, pair="bundled", started_at=1.7e9, version="0"
    )

    def connect_by(kind: type[Any]) -> Any:
        def connect(config: Any, name: str = daemon_control.CLI, **caller: Any) -> Any:
            key = config.api_key
            return kind(record.url, api_key=key, name=name, transport=daemon, **caller)

        return connect

    monkeypatch.setattr(daemon_control, "find_daemon", lambda config: record)
    monkeypatch.setattr(daemon_control, "ensure", lambda config, **kwargs: record)
    monkeypatch.setattr(daemon_control, "connect", connect_by(Client))
    monkeypatch.setattr(daemon_control, "connect_async", connect_by(AsyncClient))
    return daemon


def serve_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bundled pair know whole conversations."""
    load = registry.load_pairs

    def load_pairs(config: Config) -> dict[str, Pair]:
        pairs = dict(load(config))
        return {name: dataclasses.replace(p, single_turn=False) for name, p in pairs.items()}

    monkeypatch.setattr(registry, "load_pairs", load_pairs)
