"""Quota, offload and restore of two engines on one card, and the blocks of vLLM's own cache."""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from types import SimpleNamespace
from typing import Any, cast

import psutil
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

from flashedge.engine.vllm.inside.kv import cuda_pages, quota, save_area
from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.blocks import KvRange
from flashedge.engine.vllm.inside.kv.cuda_pages import CudaPages
from flashedge.engine.vllm.inside.kv.quota import MOVED
from flashedge.engine.vllm.inside.kv.save_area import SaveArea
from flashedge.engine.vllm.inside.kv.worker import KvMemory
from tests.support.host_driver import GRANULE, FakeCuda, HostDriver, make_tensor

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
        self.moved: Counter[str] = Counter(dict.fromkeys(MOVED, 0))
        self.away = range(0)
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

    def list_pool_blocks(self, among: range) -> list[int]:
        return [block for block in among if block < self.quota]

    def list_used_blocks(self, among: range) -> list[int]:
        return self.list_pool_blocks(among) if self.has_kv else []

    def find_end(self, share: float) -> int:
        return ceil(share * BLOCKS)

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


def offload(core: FakeCore) -> int:
    return quota.offload(core, True, 1.0)


@pytest.mark.parametrize(("had", "others", "left"), [(6, 3, 6), (8, 8, 4), (5, 9, LEAST)])
def test_restoring_brings_back_what_there_is_memory_for(
    driver: HostDriver, had: int, others: int, left: int
) -> None:
    """All of it, or a half, or the memory of one request if a half is less than that."""
    core, other = FakeCore(driver, had), FakeCore(driver, 3)
    core.layer[:had] = 7
    assert offload(core) == had * GRANULE
    assert (core.state, driver.free) == ((True, had), BLOCKS - 3)
    assert quota.set_quota(other, others) == others
    assert quota.restore(core, 1.0) == left * GRANULE
    assert (core.state, driver.free) == ((False, left), BLOCKS - others - left)
    assert bool((core.layer[:left] == 7).all())
    assert quota.restore(core, 1.0) == 0  # it is not offloaded


def test_a_restore_without_memory_for_one_request_ends_the_process(
    driver: HostDriver, caplog: pytest.LogCaptureFixture
) -> None:
    core, other = FakeCore(driver, 6), FakeCore(driver, 6)
    offload(core)
    assert quota.set_quota(other, 10) == 10
    with pytest.raises(SystemExit, match="no memory for the KV of one request"):
        quota.restore(core, 1.0)
    assert caplog.records[-1].levelname == "CRITICAL"
    assert driver.free == 2  # what was mapped in vain is free again
    core.fails = "claim_kv_blocks"
    with pytest.raises(SystemExit, match="no memory could be mapped: the disk is full"):
        quota.restore(core, 1.0)


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
def test_kv_that_cant_be_moved_is_dropped(driver: HostDriver, fails: str) -> None:
    core = FakeCore(driver, 6)
    core.fails = fails
    assert offload(core) == (0 if fails == "save_kv_blocks" else 6 * GRANULE)
    assert driver.free == BLOCKS
    assert quota.restore(core, 1.0) == 0
    assert (core.state[0], core.scheduler.has_kv) == (False, False)


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease", "cuCtxSynchronize"])
def test_memory_that_cant_be_given_back_ends_the_process(driver: HostDriver, call: str) -> None:
    """Otherwise the other engine would wait for it for ever."""
    core = FakeCore(driver, 6)
    driver.fail(call)
    with pytest.raises(SystemExit, match=f"memory could not be given back: {call}"):
        quota.set_quota(core, 4)
    with pytest.raises(SystemExit, match="memory could not be given back"):
        offload(core)


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8"])
def test_a_card_that_maps_nothing_lets_no_quota_grow(driver: HostDriver, call: str) -> None:
    core = FakeCore(driver, 6)
    core.layer[:6] = 7
    driver.fail(call)
    with pytest.raises(RuntimeError, match=call):
        quota.set_quota(core, 8)
    assert (core.state, driver.free, core.kv.count_claimed()) == ((False, 6), BLOCKS - 6, 6)
    driver.fail(None)
    assert quota.set_quota(core, 8) == 8
    assert bool((core.layer[:6] == 7).all())
    assert not core.layer[6:8].any()


def test_memory_changes_hands_part_by_part(driver: HostDriver) -> None:
    """The KV of one engine returns while that of the other is saved. All bytes are counted."""
    second, first = FakeCore(driver, 0), FakeCore(driver, BLOCKS)
    first.layer[:] = torch.arange(BLOCKS).view(-1, 1, 1)
    offload(first)
    second.scheduler.quota = BLOCKS
    assert quota.restore(second, 1.0) == 0
    second.layer[:] = 9
    shares = [part / 5 for part in range(1, 6)]
    saved, loaded = [], []
    for before, share in zip([0.0, *shares], shares, strict=False):
        saved.append(quota.offload(second, True, share) // GRANULE)
        assert second.state == (True, BLOCKS)
        if before:
            loaded.append(quota.restore(first, before) // GRANULE)
            assert first.state == (True, BLOCKS)
    loaded.append(quota.restore(first, 1.0) // GRANULE)
    assert saved == loaded == [3, 2, 3, 2, 2]
    assert first.state == (False, BLOCKS)
    assert bool((first.layer == torch.arange(BLOCKS).view(-1, 1, 1)).all())
    whole = BLOCKS * GRANULE
    moved = {"saved_bytes": whole, "unmapped_bytes": whole}
    assert second.scheduler.moved == {**moved, "loaded_bytes": 0, "mapped_bytes": whole}
    assert first.scheduler.moved == {**moved, "loaded_bytes": whole, "mapped_bytes": whole}


def test_a_part_without_memory_waits_for_the_whole(driver: HostDriver) -> None:
    core, other = FakeCore(driver, 8), FakeCore(driver, 4)
    core.layer[:8] = 7
    offload(core)
    assert quota.set_quota(other, 10) == 10
    assert quota.restore(core, 0.5) == 0
    assert (core.state, core.kv.count_claimed()) == ((True, 8), 0)
    assert quota.set_quota(other, 4) == 4
    assert quota.restore(core, 0.5) == 6 * GRANULE
    assert quota.restore(core, 1.0) == 2 * GRANULE
    assert bool((core.layer[:8] == 7).all())
    assert quota.restore(core, 0.5) == 0, "it is not offloaded any more"
    assert core.state == (False, 8)


def test_kv_is_dropped_where_host_memory_is_short(
    driver: HostDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the parts that were saved before. Memory that is pinned already counts as free."""
    free = SimpleNamespace(available=2 * 6 * GRANULE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    core = FakeCore(driver, 12)
    assert quota.offload(core, True, 0.5) == 6 * GRANULE
    free.available -= 1
    assert quota.offload(core, True, 1.0) == 0
    assert "host memory is too short" in caplog.text
    assert (driver.free, core.scheduler.has_kv) == (BLOCKS, False)
    assert quota.restore(core, 1.0) == 0
    assert core.state == (False, 12)


def test_copies_on_a_card_have_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the step in flight. The host waits for what is saved, whose memory goes away,
    and not for what is loaded."""
    monkeypatch.setattr(save_area, "CHUNK_BYTES", 3 * 8)
    cuda, pinned = FakeCuda(), []
    empty = torch.empty

    def make_pinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        pinned.append(pin_memory)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", make_pinned)
    area, layers = SaveArea(cuda), [torch.arange(40, dtype=torch.int8).view(5, 8) for _ in "ab"]
    whole = layers[0].clone()
    assert area.save(layers, [0, 1, 3, 4]) == 4 * 16
    saving = ["copies wait for steps", "copies are queued", "the host waits for copies"]
    assert cuda.calls == saving
    assert all(pinned)
    for layer in layers:
        layer.zero_()
    cuda.calls.clear()
    assert area.load(layers, [0, 2, 3, 4], 5) == 3 * 16
    assert cuda.calls == ["copies wait for steps", "copies are queued", "steps wait for copies"]
    for layer in layers:
        assert [bool((layer[i] == whole[i]).all()) for i in range(5)] == [1, 0, 0, 1, 1]


@pytest.mark.parametrize(("moment", "call"), [("save", "index_select"), ("load", "index_copy_")])
def test_a_copy_that_fails_leaves_nothing_saved(
    monkeypatch: pytest.MonkeyPatch, moment: str, call: str
) -> None:
    def fail(*args: object) -> torch.Tensor:
        raise RuntimeError("CUDA error")

    area, layer = SaveArea(), torch.ones(4, 8)
    if moment == "load":
        area.save([layer], [0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, call, fail)
        with pytest.raises(RuntimeError, match="CUDA error"):
            getattr(area, moment)(*([layer], [0, 1], 4)[: 2 + (moment == "load")])
    assert area.load([layer], [0, 1], 4) == 0


def test_kv_is_saved_in_plain_memory_where_none_can_be_pinned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on this machine, which has no card."""
    area, layer = SaveArea(FakeCuda()), torch.ones(4, 8)
    area.save([layer], [1, 2])
    layer.zero_()
    assert area.load([layer], [1, 2], 4) == 2 * 32
    assert layer.sum() == 16
    assert caplog.text.count("not pinned") == (not torch.cuda.is_available())


BLOCK, LONGEST = 4, 20
HASHER = get_request_block_hasher(BLOCK, sha256)


class Cache:
    """vLLM's cache under our quota, without engine steps."""

    def __init__(self) -> None:
        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        kv_cache_config = KVCacheConfig(BLOCKS + 1, [], groups)
        self.manager = KVCacheManager(
            kv_cache_config,
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
            kv_cache_config=kv_cache_config,
            vllm_config=SimpleNamespace(
                additional_config={},
                model_config=SimpleNamespace(max_model_len=LONGEST),
                parallel_config=SimpleNamespace(decode_context_parallel_size=1),
            ),
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
