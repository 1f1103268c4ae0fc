"""The daemon's log and the output of its processes do not grow for ever."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.daemon import control, files, process
from flashedge.daemon.files import bound_output, kept_output_path, log_path, output_path
from tests.support.commands import wait_for
from tests.unit.daemon.test_process import STUB, free_port

LINE = "run run-0123456789ab finished: 1.0 s, 100 tokens"


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    made = load_config({"port": free_port()}, {"FLASHEDGE_HOME": str(tmp_path)})
    files.prepare_state_dir(made)
    yield made
    control.stop(made, timeout_s=5)


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_log_rotates(
    config: Config, own_logging: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 2000)
    process._configure_logging(config)
    for i in range(500):
        logging.getLogger("flashedge.runtime.run").info("%s, number %d", LINE, i)
    kept = sorted(log_path(config).parent.glob("daemon.log*"))
    assert [path.name for path in kept] == ["daemon.log", *(f"daemon.log.{i}" for i in (1, 2, 3))]
    assert all(path.stat().st_size <= 2000 for path in kept)
    assert log_path(config).read_text().splitlines()[-1].endswith(f"{LINE}, number 499")


def test_a_long_output_is_kept_once_and_begins_anew(config: Config) -> None:
    """Whoever holds the file open goes on writing at its end."""
    path = output_path(config)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"first\n")
        bound_output(config)
        assert path.read_bytes() == b"first\n"
        writer.write(b"x" * files.OUTPUT_BYTES)
        bound_output(config)
        writer.write(b"after\n")
    assert path.read_bytes() == b"after\n"
    assert kept_output_path(config).stat().st_size == files.OUTPUT_BYTES + 6


def test_a_full_disk_costs_the_copy_only(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    output_path(config).write_bytes(b"x" * (files.OUTPUT_BYTES + 1))
    monkeypatch.setattr(shutil, "copyfile", copy)
    bound_output(config)
    assert output_path(config).stat().st_size == 0


def test_an_output_that_is_not_there_is_none(config: Config) -> None:
    output_path(config).unlink()
    bound_output(config)
    assert not output_path(config).exists()


def test_a_running_daemon_bounds_its_output(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_BEHAVIOUR", "chatty")
    started = control.start(config, {"port": config.port}, STUB)
    control.wait_ready(config, started, timeout_s=20)
    wait_for(lambda: output_path(config).stat().st_size == 0)
    assert kept_output_path(config).stat().st_size > files.OUTPUT_BYTES
