"""What an engine holds in memory: live tensors, and its bytes of a card."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from flashedge.engine.vllm.inside import step_memory
from flashedge.engine.vllm.inside.step_memory import LiveBytes
from flashedge.models.memory.engine_memory import CONTEXT_BYTES
from tests.support.fake_nvml import FakeNvml


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
OURS = os.getpid()
CARD = "0a2b3c4d"
"""The id of `FakeNvml`'s card, as torch gives it."""


@pytest.mark.parametrize("kv_is_in_torch", [True, False])
@pytest.mark.parametrize(
    ("told", "expected", "uuid"),
    [
        pytest.param({1: 20 * GIB, OURS: 3 * GIB + KV}, 3 * GIB, CARD, id="told"),
        pytest.param({1: 20 * GIB}, None, CARD, id="a container"),
        pytest.param({OURS: 40 * GIB}, None, CARD, id="another container's process"),
        pytest.param({OURS: 1 * GIB}, None, CARD, id="a small process with our id"),
        pytest.param({OURS: None}, None, CARD, id="WSL"),
        pytest.param(None, None, CARD, id="no answer"),
        pytest.param({OURS: 3 * GIB + KV}, None, "part", id="a part of a card has its own id"),
    ],
)
def test_where_nvml_does_not_tell_the_bytes_torch_does(
    monkeypatch: pytest.MonkeyPatch,
    told: dict[int, int | None] | None,
    expected: int | None,
    uuid: str,
    kv_is_in_torch: bool,
) -> None:
    reserved, card = 2 * GIB + (KV if kv_is_in_torch else 0), SimpleNamespace(uuid=uuid)
    processes = told and [SimpleNamespace(pid=p, usedGpuMemory=size) for p, size in told.items()]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(ComputeRunningProcesses=processes))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    found = step_memory.count_beside_kv(KV, kv_is_in_torch=kv_is_in_torch)
    assert found == (expected or 2 * GIB + CONTEXT_BYTES)
