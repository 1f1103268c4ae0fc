"""Quota, offload and restore of two engines on one card, whose driver is made of host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from vllm.v1.core.sched.interface import PauseState

from flashedge.engine.vllm.inside.kv import cuda_pages, quota
from flashedge.engine.vllm.inside.kv.blocks import KvRange
from flashedge.engine.vllm.inside.kv.cuda_pages import CudaPages
from flashedge.engine.vllm.inside.kv.worker import SaveArea
from tests.support.host_driver import GRANULE, HostDriver

BLOCKS = 12  # of a pool, each a granule long
LEAST = 3  # blocks of one request of full length


class FakeScheduler:
    """The parts of the scheduler that `quota` uses. The last blocks are reserved; all others hold
    KV that is of use, until it is dropped."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.pause_state = PauseState.UNPAUSED
        self.has_kv = True
        self.kv = self.drafts = self
        self._fresh: set[int] = set()

    def set_quota(self, blocks: int) -> int:
        before, self.quota = self.quota, max(min(blocks, BLOCKS), LEAST)
        self._fresh |= set(range(self.quota, before))
        self._fresh -= set(range(self.quota))
        return self.quota

    def list_returning(self, blocks: int) -> list[int]:
        return list(range(self.quota, max(min(blocks, BLOCKS), LEAST)))

    def collect_reserved(self) -> list[int]:
        found, self._fresh = sorted(self._fresh), set()
        return found

    def list_pool_blocks(self) -> list[int]:
        return list(range(self.quota))

    def list_used_blocks(self) -> list[int]:
        return self.list_pool_blocks() if self.has_kv else []

    def list_all_blocks(self) -> list[int]:
        return list(range(BLOCKS))

    def drop_kv(self) -> None:
        self.has_kv = False

    def count_offloaded(self) -> None: ...

    def set_pause_state(self, state: PauseState) -> None:
        self.pause_state = state

    @property
    def is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED_ALL


class FakeCore:
    """An engine process: a scheduler, and a worker whose blocks lie in the card's memory."""

    def __init__(self, driver: HostDriver, quota: int) -> None:
        pages = CudaPages(BLOCKS * GRANULE, 0, cast("Any", driver))
        self.scheduler = FakeScheduler(quota)
        self.model_executor = self
        self.kv = KvRange(pages, [pages.tensor.view(BLOCKS, GRANULE)], BLOCKS)
        self.area = SaveArea()
        self.fails: str | None = None  # a method of the worker
        self.kv.claim(range(quota))

    @property
    def layer(self) -> torch.Tensor:
        return self.kv.layers[0]

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        if method == self.fails:
            raise OSError("the disk is full")
        return [getattr(self, method)(*args)]

    def claim_kv_blocks(self, ids: Collection[int]) -> str | None:
        try:
            self.kv.claim(ids)
        except MemoryError as error:
            return str(error)
        return None

    def release_kv_blocks(self, ids: Collection[int]) -> int:
        return self.kv.release(ids)

    def save_kv_blocks(self, ids: list[int], folder: str, to_file: bool) -> int:
        return self.area.save(self.kv.layers, ids, Path(folder), to_file)

    def load_kv_blocks(self, ids: list[int]) -> int:
        return self.area.load(self.kv.layers, ids)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    def make_tensor(address: int, size: int, device: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_int8 * size).from_address(address), dtype=torch.int8)

    monkeypatch.setattr(cuda_pages, "_make_tensor", make_tensor)
    return HostDriver(free=BLOCKS)


def offload(core: FakeCore, tmp_path: Path, *, keep: bool = True) -> int:
    return quota.offload(core, keep, str(tmp_path), False)


def test_restoring_brings_all_of_it_back(driver: HostDriver, tmp_path: Path) -> None:
    core = FakeCore(driver, 6)
    core.layer[:6] = 7
    assert offload(core, tmp_path) == 6 * GRANULE
    assert (core.scheduler.is_paused, driver.free) == (True, BLOCKS)
    assert quota.restore(core) == 6 * GRANULE
    assert (core.scheduler.is_paused, core.scheduler.quota, driver.free) == (False, 6, 6)
    assert bool((core.layer[:6] == 7).all())
    assert quota.restore(core) == 0  # it is not offloaded


def test_restoring_with_less_memory_lowers_the_quota(driver: HostDriver, tmp_path: Path) -> None:
    core, other = FakeCore(driver, 8), FakeCore(driver, 3)
    core.layer[:8] = 7
    offload(core, tmp_path)
    assert quota.set_quota(other, 8) == 8
    assert quota.restore(core) == 4 * GRANULE
    assert (core.scheduler.is_paused, core.scheduler.quota, driver.free) == (False, 4, 0)
    assert bool((core.layer[:4] == 7).all())


def test_restoring_tries_the_memory_of_one_request(driver: HostDriver, tmp_path: Path) -> None:
    """Half of the quota would be less than that: it is tried before the engine gives up."""
    core, other = FakeCore(driver, 5), FakeCore(driver, 3)
    offload(core, tmp_path)
    assert quota.set_quota(other, 9) == 9
    assert quota.restore(core) == LEAST * GRANULE
    assert (core.scheduler.is_paused, core.scheduler.quota) == (False, LEAST)


def test_an_engine_without_memory_for_one_request_ends(
    driver: HostDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would stay paused for ever. The daemon notices its end and starts it again."""
    core, other = FakeCore(driver, 6), FakeCore(driver, 6)
    offload(core, tmp_path)
    assert quota.set_quota(other, 10) == 10
    with pytest.raises(SystemExit, match="no memory for the KV of one request"):
        quota.restore(core)
    assert caplog.records[-1].levelname == "CRITICAL"
    assert driver.free == 2  # what was mapped in vain is free again


def test_a_restore_that_the_device_refuses_ends_the_process(
    driver: HostDriver, tmp_path: Path
) -> None:
    """An engine that stays paused would keep its requests for ever."""
    core = FakeCore(driver, 6)
    offload(core, tmp_path)
    core.fails = "claim_kv_blocks"
    with pytest.raises(SystemExit, match="no memory could be mapped: the disk is full"):
        quota.restore(core)


def test_a_larger_quota_without_memory_is_refused(driver: HostDriver) -> None:
    core, other = FakeCore(driver, 6), FakeCore(driver, 5)
    core.layer[:6], other.layer[:5] = 7, 8
    assert quota.set_quota(core, 8) == 6
    assert driver.free == 1
    assert quota.set_quota(other, 3) == 3
    assert quota.set_quota(core, 8) == 8
    assert bool((core.layer[:6] == 7).all())
    assert bool((other.layer[:3] == 8).all())


def test_an_engine_starts_with_less_if_the_other_has_grown(driver: HostDriver) -> None:
    other = FakeCore(driver, 7)
    core = FakeCore(driver, 0)
    core.kv.claim_first(8, LEAST)
    assert (core.kv.count_claimed(), driver.free) == (4, 1)
    core.kv.release(range(4))
    assert quota.set_quota(other, 10) == 10
    with pytest.raises(MemoryError):
        core.kv.claim_first(8, LEAST)
    assert (core.kv.count_claimed(), driver.free) == (0, 2)


@pytest.mark.parametrize("fails", ["save_kv_blocks", "load_kv_blocks"])
def test_kv_that_can_not_be_moved_is_dropped(
    driver: HostDriver, tmp_path: Path, fails: str
) -> None:
    core = FakeCore(driver, 6)
    core.fails = fails
    assert offload(core, tmp_path) == (0 if fails == "save_kv_blocks" else 6 * GRANULE)
    assert driver.free == BLOCKS
    assert quota.restore(core) == 0
    assert (core.scheduler.is_paused, core.scheduler.has_kv) == (False, False)


def test_a_file_that_can_not_be_written_leaves_nothing_saved(tmp_path: Path) -> None:
    area, layer = SaveArea(), torch.ones(4, 8)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        area.save([layer], [0, 1], tmp_path / "file", True)
    assert area.load([layer], [0, 1]) == 0
