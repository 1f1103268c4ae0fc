"""Commands and a configuration with folders of their own, without the user's models."""

from pathlib import Path

import pytest

from flashedge.config import Config, load_config
from tests.unit.cli.conftest import cli

__all__ = ["cli"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path / "home")})
