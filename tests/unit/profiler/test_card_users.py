"""Who holds memory of the cards, as a stand-in for the driver tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.cli.doctor.device_checks import check_card_users
from flashedge.profiler.card_watch import (
    CardUser,
    describe_user,
    find_own_pids,
    read_card_users,
)
from tests.support.fake_nvml import FakeNvml

GIB = 1 << 30


def process(pid: int, size: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=size)


def make_nvml(**answers: Any) -> FakeNvml:
    """A card with a game, a desktop, and an engine of ours."""
    found: dict[str, Any] = {
        "ComputeRunningProcesses": [process(70, 18 * GIB), process(80, 4 * GIB)],
        "GraphicsRunningProcesses": [process(90, GIB // 2), process(80, 4 * GIB)],
        **answers,
    }
    nvml = FakeNvml(**found)
    names = {70: b"/usr/bin/python3", 80: "C:\\Games\\game.exe", 90: "/usr/lib/xorg/Xorg"}
    nvml.nvmlSystemGetProcessName = names.__getitem__  # type: ignore[attr-defined]
    return nvml


def test_other_programs_are_listed_once_and_the_largest_first() -> None:
    nvml = make_nvml()
    assert read_card_users({70}, nvml, {}) == (
        CardUser(card=0, pid=80, name="game.exe", memory_bytes=4 * GIB),
        CardUser(card=0, pid=90, name="Xorg", memory_bytes=GIB // 2),
    )
    assert nvml.open == 0, "the driver is let go again"
    assert [user.pid for user in read_card_users((), nvml, {})] == [70, 80, 90]


def test_only_cards_that_cuda_shows_count() -> None:
    each = [
        {"ComputeRunningProcesses": [process(pid, GIB)], "GraphicsRunningProcesses": []}
        for pid in (70, 80)
    ]
    nvml = make_nvml(each=each)
    shown = read_card_users((), nvml, {"CUDA_VISIBLE_DEVICES": "1"})
    assert [(user.card, user.pid) for user in shown] == [(1, 80)]


@pytest.mark.parametrize(
    "nvml",
    [
        FakeNvml(driver=False),
        FakeNvml(),  # an NVML that knows no such query
        make_nvml(ComputeRunningProcesses=None, GraphicsRunningProcesses=None),  # nor the card
    ],
)
def test_a_driver_that_tells_nothing_is_no_fault(nvml: FakeNvml) -> None:
    assert read_card_users((), nvml, {}) == ()


def test_a_lost_card_has_no_users() -> None:
    nvml = make_nvml()
    nvml.lost = {0}
    assert read_card_users((), nvml, {}) == ()


def test_a_user_is_described_with_what_is_known() -> None:
    known = CardUser(card=0, pid=80, name="game.exe", memory_bytes=4 * GIB)
    assert describe_user(known) == "game.exe (process 80) 4.0 GiB"
    unknown = CardUser(card=0, pid=80, name=None, memory_bytes=None)
    assert describe_user(unknown) == "a program (process 80) some memory"


def test_a_process_and_what_it_started_are_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own = find_own_pids(os.getpid())
        assert child.stdin is not None
        child.stdin.close()
    assert {os.getpid(), child.pid} <= own
    assert find_own_pids(1 << 30) == {1 << 30}, "one that is gone"


def test_doctor_names_them() -> None:
    (found,) = check_card_users({70}, make_nvml())
    assert found.detail == (
        "held by other programs: game.exe (process 80) 4.0 GiB; Xorg (process 90) 0.5 GiB"
    )
    (alone,) = check_card_users({70, 80, 90}, make_nvml())
    assert alone.detail == "no other program holds any"
    assert list(check_card_users((), FakeNvml(driver=False))) == []
