"""Which vLLM may start."""

from __future__ import annotations

import pytest

from flashedge.engine.vllm import compat
from flashedge.errors import ConfigError


def test_only_the_checked_minor_version_starts_unless_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(compat.ALLOW, raising=False)
    compat.check_version()
    monkeypatch.setattr(compat, "find_vllm", lambda: ("vllm", "0.32.9"))
    compat.check_version()
    assert not caplog.records
    for version in ("0.33.0", "0.3.2", "0.320.0"):
        monkeypatch.setattr(compat, "find_vllm", lambda version=version: ("vllm", version))
        with pytest.raises(ConfigError, match=r"vllm 0\.3.* checked with 0\.32\.\*") as raised:
            compat.check_version()
        assert "FLASHEDGE_ALLOW_VLLM=1" in (raised.value.hint or "")
    monkeypatch.setenv(compat.ALLOW, "1")
    compat.check_version()
    assert "0.320.0 is installed" in caplog.text
