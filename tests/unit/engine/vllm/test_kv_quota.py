"""Quota, offload and restore of two engines on one card, and the blocks of vLLM's own cache."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.kv import cuda_pages, quota
from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.blocks import KvRange
from flashedge.engine.vllm.inside.kv.cuda_pages import CudaPages
from flashedge.engine.vllm.inside.kv.worker import KvMemory, SaveArea
from tests.support.host_driver import GRANULE, HostDriver, make_tensor

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
        self._fresh = (self._fresh | set(range(before))) - set(range(self.quota))
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


class FakeCore(KvMemory):
    """An engine process: a scheduler, and a worker whose blocks lie in the card's memory."""

    def __init__(self, driver: HostDriver, quota: int) -> None:
        pages = CudaPages(BLOCKS * GRANULE, 0, cast("Any", driver))
        self.scheduler = FakeScheduler(quota)
        self.model_executor = self
        self.kv = KvRange(pages, [pages.tensor.view(BLOCKS, GRANULE)], BLOCKS)
        self.fails: str | None = None  # a method of the worker
        self.kv.claim(range(quota))

    @property
    def layer(self) -> torch.Tensor:
        return self.kv.layers[0]

    @property
    def state(self) -> tuple[bool, int]:
        """Whether it is paused, and its quota."""
        return self.scheduler.pause_state is PauseState.PAUSED_ALL, self.scheduler.quota

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        if method == self.fails:
            raise OSError("the disk is full")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv_tensor, "_ranges", [self.kv])
            return [getattr(self, method)(*args)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    monkeypatch.setattr(cuda_pages, "_make_tensor", make_tensor)
    return HostDriver(free=BLOCKS)


def offload(core: FakeCore, tmp_path: Path) -> int:
    return quota.offload(core, True, str(tmp_path), False)


@pytest.mark.parametrize(("had", "others", "left"), [(6, 3, 6), (8, 8, 4), (5, 9, LEAST)])
def test_restoring_brings_back_what_there_is_memory_for(
    driver: HostDriver, tmp_path: Path, had: int, others: int, left: int
) -> None:
    """All of it, or a half, or the memory of one request if a half is less than that."""
    core, other = FakeCore(driver, had), FakeCore(driver, 3)
    core.layer[:had] = 7
    assert offload(core, tmp_path) == had * GRANULE
    assert (core.state, driver.free) == ((True, had), BLOCKS - 3)
    assert quota.set_quota(other, others) == others
    assert quota.restore(core) == left * GRANULE
    assert (core.state, driver.free) == ((False, left), BLOCKS - others - left)
    assert bool((core.layer[:left] == 7).all())
    assert quota.restore(core) == 0  # it is not offloaded


def test_a_restore_without_memory_for_one_request_ends_the_process(
    driver: HostDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core, other = FakeCore(driver, 6), FakeCore(driver, 6)
    offload(core, tmp_path)
    assert quota.set_quota(other, 10) == 10
    with pytest.raises(SystemExit, match="no memory for the KV of one request"):
        quota.restore(core)
    assert caplog.records[-1].levelname == "CRITICAL"
    assert driver.free == 2  # what was mapped in vain is free again
    core.fails = "claim_kv_blocks"
    with pytest.raises(SystemExit, match="no memory could be mapped: the disk is full"):
        quota.restore(core)


def test_a_larger_quota_without_memory_is_refused(driver: HostDriver) -> None:
    core, other = FakeCore(driver, 6), FakeCore(driver, 5)
    core.layer[:6], other.layer[:5] = 7, 8
    assert (quota.set_quota(core, 8), driver.free) == (6, 1)
    assert (quota.set_quota(other, 3), quota.set_quota(core, 8)) == (3, 8)
    assert bool((core.layer[:6] == 7).all() and (other.layer[:3] == 8).all())


def test_an_engine_starts_with_less_if_the_other_has_grown(driver: HostDriver) -> None:
    other, core = FakeCore(driver, 7), FakeCore(driver, 0)
    core.kv.claim_first(8, LEAST)
    assert (core.kv.count_claimed(), driver.free) == (4, 1)
    core.kv.release(range(4))
    assert quota.set_quota(other, 10) == 10
    with pytest.raises(MemoryError):
        core.kv.claim_first(8, LEAST)
    assert (core.kv.count_claimed(), driver.free) == (0, 2)


@pytest.mark.parametrize("fails", ["save_kv_blocks", "load_kv_blocks"])
def test_kv_that_cant_be_moved_is_dropped(driver: HostDriver, tmp_path: Path, fails: str) -> None:
    core = FakeCore(driver, 6)
    core.fails = fails
    assert offload(core, tmp_path) == (0 if fails == "save_kv_blocks" else 6 * GRANULE)
    assert driver.free == BLOCKS
    assert quota.restore(core) == 0
    assert (core.state[0], core.scheduler.has_kv) == (False, False)


def test_a_file_that_can_not_be_written_leaves_nothing_saved(tmp_path: Path) -> None:
    area, layer = SaveArea(), torch.ones(4, 8)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        area.save([layer], [0, 1], tmp_path / "file", True)
    assert area.load([layer], [0, 1]) == 0


BLOCK, LONGEST = 4, 20
HASHER = get_request_block_hasher(BLOCK, sha256)


class Cache:
    """vLLM's cache under our quota, without engine steps."""

    def __init__(self) -> None:
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=BLOCKS + 1, kv_cache_tensors=[], kv_cache_groups=groups),
            max_model_len=LONGEST,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.pool = self.manager.block_pool
        self.open: list[Request] = []
        self._numbers = 0
        scheduler = SimpleNamespace(
            kv_cache_manager=self.manager,
            cache_config=SimpleNamespace(block_size=BLOCK),
            vllm_config=SimpleNamespace(additional_config={}),
            max_model_len=LONGEST,
            running=[],
            waiting=["a"],
            kv_holding_waiting=["b", "c"],
        )
        self.quota = quota.KvQuota(scheduler, reclaim=lambda is_candidate: False)

    def find(self, tokens: Sequence[int]) -> int:
        """How many tokens of a prompt are cached."""
        return self.manager.get_computed_blocks(self._make(tokens))[1]

    def begin(self, tokens: Sequence[int]) -> bool:
        """Compute a prompt. False where no memory is left."""
        request = self._make(tokens)
        blocks, found, *_ = self.manager.get_computed_blocks(request)
        left = len(tokens) - found
        if self.manager.allocate_slots(request, left, found, blocks) is None:
            return False
        self.open.append(request)
        return True

    def end(self, at: int = 0) -> None:
        self.manager.free(self.open.pop(at))

    def list_free(self) -> list[Any]:
        """In the order in which requests get them."""
        return list(self.pool.free_block_queue.get_all_free_blocks())

    def _make(self, tokens: Sequence[int]) -> Request:
        self._numbers += 1
        params = SamplingParams(max_tokens=1)
        params.update_from_generation_config({}, 0)
        return Request(str(self._numbers), list(tokens), params, None, block_hasher=HASHER)


def test_a_view_counts_the_requests_that_wait_with_their_kv() -> None:
    assert Cache().quota.view()["waiting"] == 3


class EvictionMachine(RuleBasedStateMachine):
    """Requests that share beginnings come and go, while the quota moves."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.cached: list[int] = []
        """Free blocks that are found by prefix, in the order in which they should go."""

    @rule(stem=st.integers(0, 1), shared=st.integers(0, 4), own=st.integers(2, 4))
    def begin(self, stem: int, shared: int, own: int) -> None:
        tokens = [*[stem] * BLOCK * shared, *[own] * BLOCK * 4][: LONGEST - 1]
        found = self.cache.find(tokens) // BLOCK
        if self.cache.begin(tokens):
            self._check_evicted(self._list_blocks(-1)[:found])

    @precondition(lambda self: self.cache.open)
    @rule(at=st.integers(0, 9))
    def end(self, at: int) -> None:
        at %= len(self.cache.open)
        blocks = [self.cache.pool.blocks[number] for number in reversed(self._list_blocks(at))]
        self.cache.end(at)
        self.cached += [b.block_id for b in blocks if b.block_hash is not None and not b.ref_cnt]

    @rule(blocks=st.integers(6, BLOCKS))
    def move_quota(self, blocks: int) -> None:
        self.cache.quota.set_quota(blocks)
        self._check_evicted(())

    def _check_evicted(self, reused: Sequence[int]) -> None:
        """Only the first ones went, and only where no other free block was left."""
        free = self.cache.list_free()
        before = [number for number in self.cached if number not in reused]
        self.cached = [b.block_id for b in free if b.block_hash is not None]
        assert self.cached == before[len(before) - len(self.cached) :]
        assert self.cached == before or len(free) == len(self.cached)

    def _list_blocks(self, at: int) -> list[int]:
        return list(self.cache.manager.get_block_ids(self.cache.open[at].request_id)[0])

    @invariant()
    def they_are_in_order_behind_those_that_hold_nothing(self) -> None:
        free = self.cache.list_free()
        held = [block.block_id for block in free if block.block_hash is not None]
        assert held == self.cached
        assert free[len(free) - len(held) :] == [self.cache.pool.blocks[b] for b in held]


TestEvictionOrder = EvictionMachine.TestCase
TestEvictionOrder.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
