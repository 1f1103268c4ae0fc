"""A configuration of its own folders, without the user's models."""

from pathlib import Path

import pytest

from flashedge.config import Config, load_config


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path / "home")})
