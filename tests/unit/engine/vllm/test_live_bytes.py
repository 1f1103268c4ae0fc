"""The count of live tensors, on tensors with and without data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from flashedge.engine.vllm.inside.memory.live_bytes import LiveBytes


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
