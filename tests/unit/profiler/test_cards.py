"""What the driver says of the cards: which CUDA shows, who holds their memory, what goes wrong."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.cli.doctor import BAD
from flashedge.cli.doctor.command import check_card_users, check_cards
from flashedge.profiler import ProfileError, card_watch
from flashedge.profiler.card_watch import XID_EVENT, CardUser, CardWatch, read_card_users
from flashedge.profiler.gpu import VISIBLE_DEVICES, read_cards
from tests.support.fake_nvml import FakeNvml, NVMLError, fake_cards

CARD = "NVIDIA GeForce RTX 4090"
GIB = 1 << 30
THREE = fake_cards("4090", "3090", "3060")


def list_visible(value: str | None, nvml: FakeNvml = THREE) -> list[tuple[int, str]]:
    environ = {} if value is None else {VISIBLE_DEVICES: value}
    return [(card.index, card.device) for card in read_cards(nvml, environ)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [(0, "0"), (1, "1"), (2, "2")]),
        ("2,0", [(2, "2"), (0, "0")]),
        (" 1 ", [(1, "1")]),
        ("GPU-1a2b3c4d,0", [(1, "GPU-1a2b3c4d"), (0, "0")]),
        ("GPU-2", [(2, "GPU-2")]),
        ("1,9,0", [(1, "1")]),
        ("1,-1,0", [(1, "1")]),
        ("1,0,1", [(1, "1"), (0, "0")]),
    ],
)
def test_visible_cards(value: str | None, expected: list[tuple[int, str]]) -> None:
    assert list_visible(value) == expected


@pytest.mark.parametrize("value", ["", "-1", "9", "GPU-", "GPU-9", "NoDevFiles"])
def test_a_variable_that_hides_all_cards_is_named(value: str) -> None:
    with pytest.raises(ProfileError, match=r"hides all cards \(3 in this machine\)") as error:
        list_visible(value)
    assert "CUDA_VISIBLE_DEVICES=0" in error.value.hint


def test_the_memory_of_a_divided_card_is_that_of_the_part() -> None:
    sizes = {"MIG-aa": (10, 9), "MIG-bb": (5, 4)}
    parts = {
        name: SimpleNamespace(total=total * GIB, free=free * GIB)
        for name, (total, free) in sizes.items()
    }
    nvml = FakeNvml(mig=parts)
    for environ, free in (({}, 9), ({VISIBLE_DEVICES: "0"}, 9), ({VISIBLE_DEVICES: "MIG-bb"}, 4)):
        (card,) = read_cards(nvml, environ)
        assert (card.free_bytes, card.capability) == (free * GIB, (8, 9))
        assert card.name.endswith("MIG")
    with pytest.raises(ProfileError, match="hides all cards"):
        list_visible("MIG-cc", nvml)


def process(pid: int, size: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=size)


def make_nvml(**answers: Any) -> FakeNvml:
    programs = {
        "ComputeRunningProcesses": [process(70, 18 * GIB), process(80, 4 * GIB)],
        "GraphicsRunningProcesses": [process(90, GIB // 2), process(80, 4 * GIB)],
    }
    nvml = FakeNvml(**{**programs, **answers})
    names = {70: b"/usr/bin/python3", 80: "C:\\Games\\game.exe", 90: "/usr/lib/xorg/Xorg"}
    nvml.nvmlSystemGetProcessName = names.__getitem__  # type: ignore[attr-defined]
    return nvml


def test_other_programs_on_cards_that_cuda_shows_are_listed_once_the_largest_first() -> None:
    nvml = make_nvml()
    assert read_card_users({70}, nvml, {}) == (
        CardUser(card=0, pid=80, name="game.exe", memory_bytes=4 * GIB),
        CardUser(card=0, pid=90, name="Xorg", memory_bytes=GIB // 2),
    )
    assert nvml.open == 0, "the driver is let go again"
    assert [user.pid for user in read_card_users((), nvml, {})] == [70, 80, 90]
    each = [
        {"ComputeRunningProcesses": [process(pid, GIB)], "GraphicsRunningProcesses": []}
        for pid in (70, 80)
    ]
    (user,) = read_card_users((), make_nvml(each=each), {VISIBLE_DEVICES: "1"})
    assert (user.card, user.pid) == (1, 80)
    (found,) = check_card_users({70}, make_nvml())
    assert found.detail == (
        "held by other programs: game.exe (process 80) 4.0 GiB; Xorg (process 90) 0.5 GiB"
    )
    (alone,) = check_card_users({70, 80, 90}, make_nvml())
    assert alone.detail == "no other program holds any"


def test_a_driver_that_tells_nothing_is_no_fault() -> None:
    lost = make_nvml()
    lost.lost = {0}
    no_query = make_nvml(ComputeRunningProcesses=None, GraphicsRunningProcesses=None)
    for nvml in (FakeNvml(driver=False), FakeNvml(), no_query, lost):
        assert read_card_users((), nvml, {}) == ()
    assert list(check_card_users((), FakeNvml(driver=False))) == []
    unknown = CardUser(card=0, pid=80, name=None, memory_bytes=None)
    assert card_watch.describe_user(unknown) == "a program (process 80) some memory"


def test_a_process_and_what_it_started_are_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own = card_watch.find_own_pids(os.getpid())
        child.stdin.close()
    assert {os.getpid(), child.pid} <= own
    assert card_watch.find_own_pids(1 << 30) == {1 << 30}, "one that is gone"


def test_heat_is_mentioned_and_neither_a_card_in_order_nor_the_power_limit() -> None:
    assert CardWatch(FakeNvml(CurrentClocksEventReasons=0x04)).poll() == ()
    (line,) = CardWatch(FakeNvml(CurrentClocksEventReasons=0x44)).poll()
    assert line == f"{CARD} is slowed by heat (hardware slowdown)"
    nvml = FakeNvml(cards=2)
    watch = CardWatch(nvml)
    assert nvml.registered == [(0, XID_EVENT), (1, XID_EVENT)]
    assert watch.poll() == ()
    watch.close()
    assert nvml.open == 0
    with pytest.raises(ProfileError, match="no NVIDIA card"):
        CardWatch(FakeNvml(cards=0))


def test_xid_errors_are_named_once_and_for_a_while() -> None:
    now = 0.0
    nvml = FakeNvml()
    watch = CardWatch(nvml, clock=lambda: now)
    nvml.xids = [(0, 31), (0, 31), (0, 999)]
    expected = (
        f"{CARD} reported Xid 31 (a kernel used an address without memory)",
        f"{CARD} reported Xid 999 (see NVIDIA's list of Xid errors)",
    )
    assert watch.poll() == expected
    now = card_watch.RECENT_S
    nvml.xids = [(0, 79)]
    assert len(watch.poll()) == 3
    now += 1
    (line,) = watch.poll()
    assert "Xid 79 (the card has fallen off the bus" in line


def test_an_error_is_not_ascribed_to_a_card_that_did_not_report_it() -> None:
    nvml = FakeNvml(cards=2)
    watch = CardWatch(nvml)
    nvml.xids, nvml.lost = [(1, 79)], {1}
    assert watch.poll()[0].startswith("a card reported Xid 79")
    alone = FakeNvml()
    watch = CardWatch(alone)
    alone.xids, alone.lost = [(0, 79)], {0}
    assert watch.poll()[0].startswith(f"{CARD} reported Xid 79")


def test_the_parts_of_a_divided_card_are_one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=10 * GIB, free=9 * GIB)
    nvml = FakeNvml(mig={"MIG-aa": memory, "MIG-bb": memory}, CurrentClocksEventReasons=0x40)
    monkeypatch.setenv(VISIBLE_DEVICES, "MIG-aa,MIG-bb")
    watch = CardWatch(nvml)
    assert nvml.registered == [(0, XID_EVENT)]
    assert watch.poll() == (f"{CARD} MIG is slowed by heat (hardware slowdown)",)
    nvml.lost = {0}
    assert watch.poll() == (f"{CARD} MIG no longer answers the driver: restart the machine",)


def test_a_lost_card_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(cards=2)
    watch = CardWatch(nvml)
    nvml.lost = {1}
    assert [card.is_lost for card in read_cards(nvml)] == [False, True]
    lost = (f"{CARD} no longer answers the driver: restart the machine",)
    assert watch.poll() == lost
    _, check = check_cards(nvml)
    assert (check.verdict, check.detail.count("no longer answers")) == (BAD, 1)
    assert "GPU 1 no longer answers" in check.detail

    class Old(FakeNvml):
        def nvmlEventSetCreate(self) -> str:
            raise NVMLError("Not Supported", 3)

    old = Old()
    watch = CardWatch(old)
    old.xids, old.lost = [(0, 31)], {0}
    assert watch.poll() == lost, "a driver without events tells it too"
    watch.close()

    monkeypatch.setenv(VISIBLE_DEVICES, "GPU-2")
    nvml = fake_cards("4090", "3090", "3060")
    watch = CardWatch(nvml)
    assert nvml.registered == [(2, XID_EVENT)], "only visible cards are watched"
    nvml.lost = {0}
    assert watch.poll() == ()
    nvml.lost = {2}
    (line,) = watch.poll()
    assert line == "NVIDIA GeForce RTX 3060 no longer answers the driver: restart the machine"
