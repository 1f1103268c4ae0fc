"""Which programs hold memory of the NVIDIA cards, as the driver tells it through NVML."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flashedge.profiler.errors import ProfileError
from flashedge.profiler.gpu import import_pynvml
from flashedge.profiler.visible_cards import VARIABLE, find_visible

QUERIES = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUser:
    """A program that holds memory of a card."""

    card: int
    """The card's number by the driver."""

    pid: int
    """As the driver counts: in a container it may be another program's number here."""

    name: str | None
    """The program's name. None where it can't be read."""

    memory_bytes: int | None
    """None where the driver does not tell, as under WSL and of parts of a card (MIG)."""


def read_card_users(
    own: Collection[int] = (), nvml: Any = None, environ: Mapping[str, str] = os.environ
) -> tuple[CardUser, ...]:
    """The programs on the cards that CUDA shows but those of the pids `own`, the largest first.

    `nvml` replaces the module `pynvml` in tests. Empty where no card answers: this is never why
    anything fails.
    """
    try:
        nvml = import_pynvml() if nvml is None else nvml
        nvml.nvmlInit()
    except ProfileError:
        return ()
    except nvml.NVMLError:
        return ()
    try:
        found = find_visible(nvml, environ.get(VARIABLE))
        users = {
            (user.card, user.pid): user
            for card in found
            for user in _read_card(nvml, card.index, card.find_handle(nvml))
            if user.pid not in own
        }
    except (ProfileError, nvml.NVMLError):
        return ()
    finally:
        nvml.nvmlShutdown()
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


def _read_card(nvml: Any, index: int, handle: Any) -> Iterator[CardUser]:
    """The programs on one card. One that computes and draws is in both lists, with all it holds."""
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
    """The last part of the program's path, as the driver knows it, or else the system."""
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
