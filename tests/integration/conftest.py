"""A daemon process with simulated engines and folders of its own."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from flashedge.daemon import control
from tests.support.commands import start_simulated


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    yield from _use_home(tmp_path, monkeypatch)


@pytest.fixture
def daemon(config: Config) -> subprocess.Popen[bytes]:
    return start_simulated(config)


@pytest.fixture(scope="module")
def shared_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    with pytest.MonkeyPatch.context() as patch:
        yield from _use_home(tmp_path_factory.mktemp("home"), patch)


@pytest.fixture(scope="module")
def shared_daemon(shared_config: Config) -> subprocess.Popen[bytes]:
    """For tests that neither stop the daemon nor count its runs: a start takes seconds."""
    return start_simulated(shared_config)


def _use_home(home: Path, patch: pytest.MonkeyPatch) -> Iterator[Config]:
    patch.setenv("FLASHEDGE_HOME", str(home))
    patch.setenv("FLASHEDGE_PORT", "0")
    made = load_config()
    yield made
    control.stop(made, timeout_s=10)
