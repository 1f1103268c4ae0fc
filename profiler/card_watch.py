"""What goes wrong on the NVIDIA cards while a program runs, and which programs hold their memory.

NVML reports only Xid errors that occur after a program has asked for them, so a `CardWatch` must
be open before.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import POWER_LIMIT, VARIABLE, find_visible, open_nvml, read_cards

XID_EVENT = 0x08  # nvmlEventTypeXidCriticalError
RECENT_S = 600.0
"""How long an Xid error is reported."""
LOST = "no longer answers the driver: restart the machine"
XIDS = {
    13: "a kernel failed",
    31: "a kernel used an address without memory",
    43: "a kernel was stopped",
    45: "a program was ended after an earlier error",
    48: "memory failed beyond correction",
    61: "the card's controller failed",
    62: "the card's controller stopped",
    63: "failing memory was replaced by spare memory",
    64: "failing memory could not be replaced",
    79: "the card has fallen off the bus: check its power and its slot, restart the machine",
    94: "memory failed; one program was ended",
    95: "memory failed; the card needs a reset",
    119: "the card's firmware does not answer: restart the machine",
}
"""The meanings of the most common Xid errors. Ref: NVIDIA, "XID Errors"."""


class CardWatch:
    """Reports what is wrong with the cards. Its methods may block while a card does not answer."""

    def __init__(self, nvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`nvml` replaces the module `pynvml` in tests. Raises ProfileError without a card."""
        self._nvml = nvml = import_module("pynvml") if nvml is None else nvml
        self._clock = clock
        cards = read_cards(nvml)
        self._names = [card.name for card in cards]
        # By number: the id of a lost card can't be read.
        self._environ = {VARIABLE: ",".join(str(card.index) for card in cards)}
        self._xids: list[tuple[float, str]] = []
        """When an Xid error was read, by the clock, and what it says."""
        nvml.nvmlInit()
        self._events: Any = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # e.g. under WSL
            self._events = nvml.nvmlEventSetCreate()
        for card in cards:
            with contextlib.suppress(nvml.NVMLError, AttributeError):  # the card reports no events
                handle = nvml.nvmlDeviceGetHandleByIndex(card.index)
                nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, self._events)

    def close(self) -> None:
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
        self._nvml.nvmlShutdown()

    def poll(self) -> tuple[str, ...]:
        """A line for each recent Xid error, each lost card, and each reason that slows a card, but
        for the power limit."""
        self._xids += self._read_xids()
        since = self._clock() - RECENT_S
        self._xids = [(at, line) for at, line in self._xids if at >= since]
        # The same error often comes once for each kernel that was under way.
        lines = dict.fromkeys(line for _, line in self._xids)
        return (*lines, *self._read_states())

    def _read_xids(self) -> Iterator[tuple[float, str]]:
        nvml = self._nvml
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
            except nvml.NVMLError:  # no event
                return
            number, card = int(event.eventData), self._names[0]
            with contextlib.suppress(nvml.NVMLError):
                card = str(nvml.nvmlDeviceGetName(event.device))
            meaning = XIDS.get(number, "see NVIDIA's list of Xid errors")
            yield self._clock(), f"{card} reported Xid {number} ({meaning})"

    def _read_states(self) -> Iterator[str]:
        try:
            cards = read_cards(self._nvml, self._environ)
        except ProfileError as error:
            yield str(error)
            return
        for name, card in zip(self._names, cards, strict=False):
            if card.is_lost:
                yield f"{name} {LOST}"
            for reason in card.throttled_by:
                if reason != POWER_LIMIT:  # which every card reaches under load
                    yield f"{name} is slowed by {reason}"
        for name in self._names[len(cards) :]:
            yield f"{name} {LOST}"


QUERIES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUser:
    """A program that holds memory of a card."""

    card: int
    """The card's number by the driver."""
    pid: int
    """As the driver counts: in a container it may be another program's number here."""
    name: str | None
    """None where it can't be read."""
    memory_bytes: int | None
    """None where the driver does not tell, as under WSL and for parts of a card (MIG)."""


def read_card_users(
    own: Collection[int] = (), nvml: Any = None, environ: Mapping[str, str] = os.environ
) -> tuple[CardUser, ...]:
    """The programs on the cards that CUDA shows, the largest first, without the pids `own`. Empty
    where a card does not answer: a list of programs is no reason to fail."""
    try:
        with open_nvml(nvml) as nvml:
            users = {
                (user.card, user.pid): user
                for card in find_visible(nvml, environ.get(VARIABLE))
                for user in _read_users(nvml, card.index, card.find_handle(nvml))
                if user.pid not in own
            }
    except ProfileError:
        return ()
    return tuple(sorted(users.values(), key=lambda user: (-(user.memory_bytes or 0), user.pid)))


def find_own_pids(pid: int) -> frozenset[int]:
    """A process and all that it started."""
    import psutil

    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return frozenset((pid,))
    return frozenset((pid, *(child.pid for child in children)))


def describe_user(user: CardUser) -> str:
    size = "some memory" if user.memory_bytes is None else f"{user.memory_bytes / 2**30:.1f} GiB"
    return f"{user.name or 'a program'} (process {user.pid}) {size}"


def _read_users(nvml: Any, index: int, handle: Any) -> Iterator[CardUser]:
    """The users of one card. NVML lists a program that computes and draws twice, each time with all
    that it holds."""
    for query in QUERIES:
        try:
            found = getattr(nvml, query)(handle)
        except (nvml.NVMLError, AttributeError):  # not supported by this card or this NVML
            continue
        for process in found:
            size = getattr(process, "usedGpuMemory", None)
            pid = int(process.pid)
            yield CardUser(
                card=index,
                pid=pid,
                name=_read_name(nvml, pid),
                memory_bytes=None if size is None else int(size),
            )


def _read_name(nvml: Any, pid: int) -> str | None:
    """The last part of the program's path, as the driver knows it, or else as the system does."""
    import psutil

    try:
        name = nvml.nvmlSystemGetProcessName(pid)
    except (nvml.NVMLError, AttributeError):
        try:
            return str(psutil.Process(pid).name())
        except psutil.Error:
            return None
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return text.replace("\\", "/").rpartition("/")[2] or None
