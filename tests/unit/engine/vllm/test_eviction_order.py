"""Which KV blocks requests get: those that hold nothing, then what was used longest ago, the end of
a prompt before its beginning. Shown on vLLM's own cache, whose blocks our quota takes and returns.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from flashedge.engine.vllm.inside.kv.quota import KvQuota

BLOCK, BLOCKS, LONGEST = 4, 12, 20
CHAT, OTHER, THIRD = ([number] * 17 for number in (1, 2, 3))
"""Prompts of four full blocks, and a token more."""
HASHER = get_request_block_hasher(BLOCK, sha256)
NAMES = count()


def make_request(tokens: list[int]) -> Request:
    params = SamplingParams(max_tokens=1)
    params.update_from_generation_config({}, 0)
    return Request(str(next(NAMES)), tokens, params, None, block_hasher=HASHER)


def test_a_smaller_quota_leaves_what_it_has_room_for() -> None:
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    manager = KVCacheManager(
        KVCacheConfig(num_blocks=BLOCKS + 1, kv_cache_tensors=[], kv_cache_groups=groups),
        max_model_len=LONGEST,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
    )
    scheduler = SimpleNamespace(
        kv_cache_manager=manager,
        cache_config=SimpleNamespace(block_size=BLOCK),
        vllm_config=SimpleNamespace(additional_config={}),
        max_model_len=LONGEST,
        running=[],
    )
    quota = KvQuota(scheduler, reclaim=lambda is_candidate: False)

    def run(tokens: list[int]) -> None:
        request = make_request(tokens)
        blocks, found, *_ = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, len(tokens) - found, found, blocks) is not None
        manager.free(request)

    def count_cached(tokens: list[int]) -> int:
        return int(manager.get_computed_blocks(make_request(tokens))[1])

    run(CHAT)
    quota.set_quota(8)
    assert count_cached(CHAT) == 16
    run(OTHER)
    assert quota.set_quota(6) == 6
    assert (count_cached(CHAT), count_cached(OTHER)) == (8, 16)
    quota.set_quota(BLOCKS)
    run(THIRD)
    assert (count_cached(CHAT), count_cached(OTHER)) == (8, 16), "what comes back holds nothing"
    run(list(range(100, 100 + 17)))
    assert (count_cached(CHAT), count_cached(OTHER), count_cached(THIRD)) == (0, 12, 16)
