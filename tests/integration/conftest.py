"""A daemon process with simulated engines and folders of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.daemon import control
from tests.support.commands import SIMULATED


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    monkeypatch.setenv("FLASHEDGE_HOME", str(tmp_path))
    monkeypatch.setenv("FLASHEDGE_PORT", "0")
    made = load_config()
    yield made
    control.stop(made, timeout_s=10)


@pytest.fixture
def daemon(config: Config) -> subprocess.Popen[bytes]:
    process = control.start(config, {"port": 0}, SIMULATED)
    control.wait_ready(config, process, timeout_s=60)
    return process
