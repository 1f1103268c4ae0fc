"""What the driver says about a card while engines run on it."""

from __future__ import annotations

import pytest

from flashedge.cli.doctor.check import BAD
from flashedge.cli.doctor.device_checks import check_cards
from flashedge.profiler.card_watch import RECENT_S, XID_EVENT, CardWatch
from flashedge.profiler.errors import ProfileError
from flashedge.profiler.gpu import read_cards
from tests.support.fake_nvml import FakeNvml, NVMLError, fake_cards

CARD = "NVIDIA GeForce RTX 4090"


def test_a_card_in_order_is_not_mentioned() -> None:
    nvml = FakeNvml(cards=2)
    watch = CardWatch(nvml)
    assert nvml.registered == [(0, XID_EVENT), (1, XID_EVENT)]
    assert watch.poll() == ()
    watch.close()
    assert nvml.open == 0


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
    now = RECENT_S
    nvml.xids = [(0, 79)]
    assert len(watch.poll()) == 3
    now += 1
    (line,) = watch.poll()
    assert "Xid 79 (the card has fallen off the bus" in line


def test_a_lost_card_is_named() -> None:
    nvml = FakeNvml(cards=2)
    watch = CardWatch(nvml)
    nvml.lost = {1}
    assert [card.is_lost for card in read_cards(nvml)] == [False, True]
    assert watch.poll() == (f"{CARD} no longer answers the driver: restart the machine",)
    (check,) = check_cards(nvml)
    assert (check.verdict, check.detail.count("no longer answers")) == (BAD, 1)
    assert "GPU 1 no longer answers" in check.detail


def test_heat_is_named_and_the_power_limit_is_not() -> None:
    """Every card reaches its power limit under load."""
    assert CardWatch(FakeNvml(CurrentClocksEventReasons=0x04)).poll() == ()
    (line,) = CardWatch(FakeNvml(CurrentClocksEventReasons=0x44)).poll()
    assert line == f"{CARD} is slowed by heat (hardware slowdown)"


def test_a_driver_without_events_still_reports_lost_cards() -> None:
    class Old(FakeNvml):
        def nvmlEventSetCreate(self) -> str:
            raise NVMLError("Not Supported", 3)

    nvml = Old()
    watch = CardWatch(nvml)
    nvml.xids = [(0, 31)]
    nvml.lost = {0}
    assert watch.poll() == (f"{CARD} no longer answers the driver: restart the machine",)
    watch.close()


def test_without_a_card_there_is_nothing_to_watch() -> None:
    with pytest.raises(ProfileError, match="no NVIDIA card"):
        CardWatch(FakeNvml(cards=0))


def test_only_visible_cards_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    nvml = fake_cards("4090", "3090", "3060")
    watch = CardWatch(nvml)
    assert nvml.registered == [(2, XID_EVENT)]
    nvml.lost = {0}
    assert watch.poll() == ()
    nvml.lost = {2}
    assert watch.poll() == (
        "NVIDIA GeForce RTX 3060 no longer answers the driver: restart the machine",
    )
