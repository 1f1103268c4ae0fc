"""Which KV blocks requests get: those that hold nothing, then what was used longest ago, the end of
a prompt before its beginning. Shown on vLLM's own cache, whose blocks our quota takes and returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.kv.quota import KvQuota

BLOCK = 4
"""Tokens."""
BLOCKS = 12
"""That requests can use."""
LONGEST = 20
"""Tokens of a request."""
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
        )
        self.quota = KvQuota(scheduler, reclaim=lambda is_candidate: False)

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

    def run(self, tokens: Sequence[int]) -> None:
        assert self.begin(tokens)
        self.end(-1)

    def list_free(self) -> list[Any]:
        """In the order in which requests get them."""
        return list(self.pool.free_block_queue.get_all_free_blocks())

    def _make(self, tokens: Sequence[int]) -> Request:
        self._numbers += 1
        params = SamplingParams(max_tokens=1)
        params.update_from_generation_config({}, 0)
        return Request(str(self._numbers), list(tokens), params, None, block_hasher=HASHER)


CHAT, OTHER, THIRD = ([number] * 17 for number in (1, 2, 3))
"""Prompts of four full blocks, and a token more."""


def test_a_smaller_quota_leaves_what_it_has_room_for() -> None:
    cache = Cache()
    cache.run(CHAT)
    cache.quota.set_quota(8)
    assert cache.find(CHAT) == 16
    cache.run(OTHER)
    assert cache.quota.set_quota(6) == 6
    assert (cache.find(CHAT), cache.find(OTHER)) == (8, 16)
    cache.quota.set_quota(BLOCKS)
    cache.run(THIRD)
    assert (cache.find(CHAT), cache.find(OTHER)) == (8, 16), "what comes back holds nothing"


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
        groups = self.cache.manager.get_block_ids(self.cache.open[at].request_id)
        return list(groups[0])

    @invariant()
    def they_are_in_order_behind_those_that_hold_nothing(self) -> None:
        free = self.cache.list_free()
        held = [block.block_id for block in free if block.block_hash is not None]
        assert held == self.cached
        assert free[len(free) - len(held) :] == [self.cache.pool.blocks[b] for b in held]


TestEvictionOrder = EvictionMachine.TestCase
TestEvictionOrder.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
