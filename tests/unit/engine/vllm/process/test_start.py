"""How engine processes start, and what they get from the daemon and send to it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import platform
import signal
from collections.abc import Callable
from multiprocessing import sharedctypes
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine import platform as engine_platform
from flashedge.engine.vllm.inside.keys import STEP_RECORD
from flashedge.engine.vllm.inside.step_record import RECORD_BYTES, StepRecord, get_step_record
from flashedge.engine.vllm.process import start
from flashedge.engine.vllm.process.start import ProcessSetup, apply_setup, set_up, show_cards
from flashedge.profiler.gpu import VISIBLE_DEVICES, read_cards
from tests.support.fake_nvml import FakeNvml

CARDS, FORKS = ("0", "1,2", None), "forkserver"
ADA, HOPPER = {"CudaComputeCapability": (8, 9)}, {"CudaComputeCapability": (9, 0)}


def start_process(target: Callable[..., None], *args: object, method: str = "spawn") -> Any:
    process = apply_setup(multiprocessing.get_context(method)).Process(target=target, args=args)
    process.start()
    return process


def die_in_step() -> None:
    get_step_record().begin_step(["gen-1-0a1b2c3d"])
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_record_outlives_its_process() -> None:
    memory = sharedctypes.RawArray("B", RECORD_BYTES)
    with set_up(ProcessSetup(attributes={STEP_RECORD: memory})):
        process = start_process(die_in_step)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert StepRecord(memory).holds("gen-1")


def tell_cards(answers: multiprocessing.Queue[str | None]) -> None:
    answers.put(os.environ.get(VISIBLE_DEVICES))


def find_shown_cards(method: str) -> str | None:
    answers = multiprocessing.get_context(method).Queue()
    process = start_process(tell_cards, answers, method=method)
    seen = answers.get(timeout=60)
    process.join()
    return seen


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_processes_that_start_at_once_see_their_own_cards(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv(VISIBLE_DEVICES, "7")

    async def see(cards: str | None) -> str | None:
        with set_up(ProcessSetup(cards=cards)):
            return await asyncio.to_thread(find_shown_cards, method)

    seen = await asyncio.gather(*map(see, CARDS))
    assert seen[:2] == ["0", "1,2"]
    if method == "spawn":  # a fork server that runs already has the environment of its own start
        assert seen[2] == "7"
    assert os.environ[VISIBLE_DEVICES] == "7"


def test_a_variable_that_the_daemon_lacks_is_lacking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    with set_up(ProcessSetup(cards="1")), show_cards():
        assert os.environ[VISIBLE_DEVICES] == "1"
    assert VISIBLE_DEVICES not in os.environ


@pytest.fixture
def have_cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(engine_platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(start, "_forks_failed", False)
    return lambda *each: monkeypatch.setattr(
        start, "read_cards", lambda: read_cards(FakeNvml(each=each), {})
    )


def test_cards_of_one_kind_fork_but_for_wsl_and_where_cuda_does_not_work_behind_one(
    have_cards: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cards, method in (((ADA, HOPPER), "spawn"), ((ADA, ADA), FORKS), ((ADA,), FORKS)):
        have_cards(*cards)
        assert start.choose_start_method() == method
    with monkeypatch.context() as patch:
        wsl = SimpleNamespace(release="5.15.153.1-microsoft-standard-WSL2")
        patch.setattr(platform, "uname", lambda: wsl)
        assert start.choose_start_method() == "spawn"
    assert not start.give_up_forks("the generator engine did not start: no such model")
    assert start.choose_start_method() == FORKS
    fault = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with …"
    assert start.give_up_forks(fault)
    assert start.choose_start_method() == "spawn"


def test_a_cpu_forks_and_never_gives_it_up() -> None:
    assert start.choose_start_method() == FORKS
    assert not start.give_up_forks("RuntimeError: initialization error")
    assert start.choose_start_method() == FORKS
