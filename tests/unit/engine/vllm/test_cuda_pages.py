"""Memory of a card that is mapped and unmapped, on a driver made of host memory."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from flashedge.engine.vllm.card_check import card_maps_memory
from flashedge.engine.vllm.inside.kv import cuda_pages
from flashedge.engine.vllm.inside.kv.cuda_pages import CudaPages
from tests.support.host_driver import GRANULE, HostDriver, make_tensor
from tests.unit.engine.vllm.test_granules import can_be_read


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    monkeypatch.setattr(cuda_pages, "_make_tensor", make_tensor)
    return HostDriver(free=4)


def make_pages(driver: HostDriver, granules: int) -> CudaPages:
    return CudaPages(granules * GRANULE - 100, 0, cast("Any", driver))


def test_memory_is_zero_when_mapped_and_gone_when_unmapped(driver: HostDriver) -> None:
    pages = make_pages(driver, 8)
    assert (pages.mechanism, pages.granule) == ("device", GRANULE)
    assert len(pages.tensor) == 8 * GRANULE - 100
    assert not any(can_be_read(pages.tensor[i * GRANULE :]) for i in range(8))
    pages.map(2, 3)
    assert (driver.free, len(driver.handles)) == (1, 3)
    assert not pages.tensor[2 * GRANULE : 5 * GRANULE].any()
    pages.tensor[2 * GRANULE : 5 * GRANULE] = 5
    assert pages.unmap(3, 1) == GRANULE
    readable = [i for i in range(8) if can_be_read(pages.tensor[i * GRANULE :])]
    assert readable == [2, 4]
    assert bool((pages.tensor[4 * GRANULE : 5 * GRANULE] == 5).all())
    pages.map(3, 1)
    assert not pages.tensor[3 * GRANULE : 4 * GRANULE].any()
    assert pages.unmap(2, 3) == 3 * GRANULE
    assert (driver.free, driver.handles, driver.mapped) == (4, set(), {})


def test_a_mapping_that_fails_maps_nothing(driver: HostDriver) -> None:
    pages, others = make_pages(driver, 8), make_pages(driver, 8)
    others.map(0, 2)
    with pytest.raises(MemoryError, match="no memory left"):
        pages.map(0, 3)
    assert (driver.free, len(driver.handles)) == (2, 2)
    assert not can_be_read(pages.tensor)
    others.unmap(0, 2)
    pages.map(0, 3)
    assert can_be_read(pages.tensor)


def test_any_other_error_of_the_driver_is_named(driver: HostDriver) -> None:
    pages = make_pages(driver, 2)
    with pytest.raises(RuntimeError, match="cuMemUnmap: CUDA_ERROR_INVALID_VALUE"):
        pages._unmap_all([0])
    assert driver.handles == set()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_the_trial_fails_without_a_card(caplog: pytest.LogCaptureFixture) -> None:
    assert not card_maps_memory.__wrapped__()
    (record,) = caplog.records
    assert "the KV memory is fixed" in record.getMessage()
    assert "CUDA" in record.getMessage()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")
def test_the_trial_succeeds_on_a_card() -> None:
    assert card_maps_memory.__wrapped__()
