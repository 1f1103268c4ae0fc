"""What goes wrong on the NVIDIA cards while a program runs, and which programs hold their memory.

NVML reports an Xid error only to programs that registered before it occurred, so a `CardWatch`
must be open by then.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import (
    LOST,
    POWER_LIMIT,
    VISIBLE_DEVICES,
    find_visible,
    open_nvml,
    read_cards,
)

XID_EVENT = 0x08  # nvmlEventTypeXidCriticalError
RECENT_S = 600.0
"""How long an Xid error is reported. Chosen by hand: a minute is over before a user looks, and an
hour would show errors of programs that ended long ago."""
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
        self._names = {card.index: card.name for card in cards}
        """Names by the driver's number. A card's parts have one entry: they share heat and loss."""
        # Cards are named by number, since the id of a lost card can't be read.
        self._environ = {VISIBLE_DEVICES: ",".join(map(str, self._names))}
        self._xids: list[tuple[float, str]] = []
        """(when it was read, by `clock`; the line that reports it) of each Xid error."""
        nvml.nvmlInit()
        self._events: Any = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):  # e.g. under WSL
            self._events = nvml.nvmlEventSetCreate()
        for index in self._names:
            with contextlib.suppress(nvml.NVMLError, AttributeError):  # the card reports no events
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, self._events)

    def close(self) -> None:
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
        self._nvml.nvmlShutdown()

    def poll(self) -> tuple[str, ...]:
        """A line for each recent Xid error, each lost card, each reason that slows a card (except
        the power limit, which every card reaches under load), or a driver that does not answer."""
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
            number, names = int(event.eventData), list(self._names.values())
            card = names[0] if len(names) == 1 else "a card"
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
        found = {card.index: card for card in cards}
        for index, name in self._names.items():
            card = found.get(index)
            if card is None or card.is_lost:
                yield f"{name} {LOST}"
                continue
            for reason in card.throttled_by:
                if reason != POWER_LIMIT:
                    yield f"{name} is slowed by {reason}"


QUERIES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUser:
    """A program that holds memory of a card."""

    card: int
    """The driver's number of the card."""
    pid: int
    """As the driver counts: inside a container another process may have this number."""
    name: str | None
    """None where it can't be read."""
    memory_bytes: int | None
    """None where the driver does not know it, as under WSL and for parts of a card (MIG)."""


def read_card_users(
    own: Collection[int] = (), nvml: Any = None, environ: Mapping[str, str] = os.environ
) -> tuple[CardUser, ...]:
    """The programs on the cards that CUDA shows, without the pids `own`. The one with the most
    memory comes first. Empty where a card does not answer: this list is no reason to fail."""
    try:
        with open_nvml(nvml) as nvml:
            users = {
                (user.card, user.pid): user
                for card in find_visible(nvml, environ.get(VISIBLE_DEVICES))
                for user in _read_users(nvml, card.index, card.find_handle(nvml))
                if user.pid not in own
            }
    except ProfileError:
        return ()
    return tuple(sorted(users.values(), key=lambda user: (-(user.memory_bytes or 0), user.pid)))


def find_own_pids(pid: int) -> frozenset[int]:
    """The pids of a process and of all its descendants."""
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
    """Yield the users of one card. A program that computes and draws comes twice, each time with
    all the memory that it holds."""
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
    """The program's file name as the driver gives it, or else its name as the system does."""
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
