"""The command line in a folder of its own."""

from pathlib import Path

import pytest

from tests.support.cli_rig import Cli, cli_for


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_for(tmp_path, monkeypatch, capfd)
