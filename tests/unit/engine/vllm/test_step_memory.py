"""What an engine holds in memory: live tensors, and its bytes of a card."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from flashedge.engine.vllm.inside import step_memory
from flashedge.engine.vllm.inside.step_memory import LiveBytes
from flashedge.models.memory.engine_memory import CONTEXT_BYTES


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_it_counts_what_is_alive_at_once(device: str) -> None:
    earlier = torch.zeros(5000, device=device)
    with LiveBytes() as live:
        first = torch.empty(1000, device=device)
        assert (live.live, live.peak) == (4000, 4000)
        view = first.view(10, 100)[2:]
        earlier[:1000] += first  # in place, and older than the count
        second = view + 1
        assert (live.live, live.peak) == (7200, 7200)
        del first, view
        third = second.double()
        assert (live.live, live.peak) == (3200 + 6400, 9600)
        del second, third
    assert (live.live, live.peak) == (0, 9600)


def test_it_counts_a_card_that_is_not_there() -> None:
    with FakeTensorMode(), LiveBytes() as live:
        hidden = torch.empty(4096, 3584, dtype=torch.bfloat16, device="cuda")
        wide = torch.cat([hidden, hidden], dim=1)
        assert wide.device.type == "cuda"
        del hidden
        assert live.live == 4096 * 7168 * 2
    assert live.peak == 4096 * 3584 * 2 * 3


GIB = 1 << 30
KV = 6 * GIB


class NVMLError(Exception):
    pass


class Nvml:
    """A driver that tells these processes of the card."""

    NVMLError = NVMLError

    def __init__(self, processes: list[tuple[int, int | None]] | None) -> None:
        self._processes = processes

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-0a1b":
            raise NVMLError(f"not found: {uuid}")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        if self._processes is None:
            raise NVMLError("not supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self._processes]


def count(
    monkeypatch: pytest.MonkeyPatch,
    processes: list[tuple[int, int | None]] | None,
    *,
    reserved: int,
    is_kv_torchs: bool,
    uuid: str = "0a1b",
) -> int:
    monkeypatch.setattr(step_memory, "import_pynvml", lambda: Nvml(processes))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    card = SimpleNamespace(uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    return step_memory.count_beside_kv(KV, is_kv_torchs=is_kv_torchs)


OURS = os.getpid()


@pytest.mark.parametrize("is_kv_torchs", [True, False])
def test_nvml_tells_our_process(monkeypatch: pytest.MonkeyPatch, is_kv_torchs: bool) -> None:
    """Whoever allocated the KV, and whatever other programs hold."""
    reserved = 2 * GIB + (KV if is_kv_torchs else 0)
    told = [(1, 20 * GIB), (OURS, 3 * GIB + KV)]
    found = count(monkeypatch, told, reserved=reserved, is_kv_torchs=is_kv_torchs)
    assert found == 3 * GIB


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([(1, 20 * GIB)], id="a container"),
        pytest.param([(OURS, 40 * GIB)], id="another container's process with our id"),
        pytest.param([(OURS, 1 * GIB)], id="a small process with our id"),
        pytest.param([(OURS, None)], id="WSL"),
        pytest.param(None, id="no answer"),
    ],
)
def test_where_nvml_does_not_tell_it_torch_does(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[int, int | None]] | None
) -> None:
    found = count(monkeypatch, told, reserved=2 * GIB + KV, is_kv_torchs=True)
    assert found == 2 * GIB + CONTEXT_BYTES
    found = count(monkeypatch, told, reserved=2 * GIB, is_kv_torchs=False)
    assert found == 2 * GIB + CONTEXT_BYTES


def test_a_card_that_nvml_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a card has an id of its own."""
    found = count(monkeypatch, [], reserved=2 * GIB + KV, is_kv_torchs=True, uuid="part")
    assert found == 2 * GIB + CONTEXT_BYTES
