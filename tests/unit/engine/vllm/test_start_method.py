"""How engine processes start: forked from a process that has imported vLLM, or spawned."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest

from flashedge.engine import platform as engine_platform
from flashedge.engine.vllm import compat
from flashedge.profiler.gpu import read_cards
from tests.support.fake_nvml import FakeNvml

ADA, HOPPER = {"CudaComputeCapability": (8, 9)}, {"CudaComputeCapability": (9, 0)}


@pytest.fixture
def _on_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(compat, "_forks_failed", False)


def have_cards(monkeypatch: pytest.MonkeyPatch, *each: dict[str, object]) -> None:
    monkeypatch.setattr(compat, "read_cards", lambda: read_cards(FakeNvml(each=each), {}))


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
