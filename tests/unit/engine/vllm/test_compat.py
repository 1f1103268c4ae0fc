"""Which vLLM may start, and how engine processes do: forked from a process that has imported vLLM,
or spawned."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest

from flashedge.engine import platform as engine_platform
from flashedge.engine.vllm import compat
from flashedge.errors import ConfigError
from flashedge.profiler.gpu import read_cards
from tests.support.fake_nvml import FakeNvml

ADA, HOPPER = {"CudaComputeCapability": (8, 9)}, {"CudaComputeCapability": (9, 0)}


@pytest.fixture
def _on_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(compat, "_forks_failed", False)


def have_cards(monkeypatch: pytest.MonkeyPatch, *each: dict[str, object]) -> None:
    monkeypatch.setattr(compat, "read_cards", lambda: read_cards(FakeNvml(each=each), {}))


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


def test_a_cpu_forks() -> None:
    assert compat.choose_start_method() == "forkserver"


@pytest.mark.usefixtures("_on_cards")
@pytest.mark.parametrize(
    ("cards", "method"),
    [((ADA,), "forkserver"), ((ADA, ADA), "forkserver"), ((ADA, HOPPER), "spawn")],
)
def test_cards_of_one_kind_fork(
    monkeypatch: pytest.MonkeyPatch, cards: tuple[dict[str, object], ...], method: str
) -> None:
    have_cards(monkeypatch, *cards)
    assert compat.choose_start_method() == method


@pytest.mark.usefixtures("_on_cards")
def test_wsl_spawns(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cards(monkeypatch, ADA)
    wsl = SimpleNamespace(release="5.15.153.1-microsoft-standard-WSL2")
    monkeypatch.setattr(platform, "uname", lambda: wsl)
    assert compat.choose_start_method() == "spawn"


@pytest.mark.usefixtures("_on_cards")
def test_forks_end_where_cuda_does_not_work_behind_one(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cards(monkeypatch, ADA)
    assert not compat.give_up_forks("the generator engine did not start: no such model")
    assert compat.choose_start_method() == "forkserver"
    fault = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with …"
    assert compat.give_up_forks(fault)
    assert compat.choose_start_method() == "spawn"


def test_a_cpu_never_gives_up_forks() -> None:
    assert not compat.give_up_forks("RuntimeError: initialization error")
    assert compat.choose_start_method() == "forkserver"
