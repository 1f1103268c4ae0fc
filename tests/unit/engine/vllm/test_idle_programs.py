"""The blocks of idle programs are the first that vLLM's own queue gives away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from flashedge.engine.vllm.inside.kv.idle_programs import IdlePrograms


class Pool(SimpleNamespace):
    """Eight cached blocks, of which none is in use, in the order of their numbers."""

    def __init__(self) -> None:
        blocks = [KVCacheBlock(block_id) for block_id in range(8)]
        for block in blocks:
            block._block_hash = b"found by prefix"
        super().__init__(blocks=blocks, free_block_queue=FreeKVCacheBlockQueue(blocks))

    def take(self, count: int) -> list[int]:
        return [block.block_id for block in self.free_block_queue.popleft_n(count)]


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_the_blocks_of_an_idle_program_go_first(pool: Pool) -> None:
    idle = IdlePrograms()
    idle.note_use("a", [0, 1, 2])
    idle.note_use("b", [5, 6])
    assert idle.evict_first(pool, ["a"]) == 2
    assert pool.take(8) == [5, 6, 0, 1, 2, 3, 4, 7]


def test_a_block_belongs_to_the_program_that_used_it_last(pool: Pool) -> None:
    idle = IdlePrograms()
    idle.note_use("a", [4, 5])
    idle.note_use("b", [5])
    assert idle.evict_first(pool, ["b"]) == 1
    assert pool.take(2) == [4, 0]


def test_blocks_in_use_and_blocks_without_a_prefix_stay_where_they_are(pool: Pool) -> None:
    pool.free_block_queue.remove(pool.blocks[3])
    pool.blocks[3].ref_cnt = 1
    pool.blocks[4].reset_hash()
    idle = IdlePrograms()
    idle.note_use("a", [3, 4, 6])
    assert idle.evict_first(pool, []) == 1
    assert pool.take(7) == [6, 0, 1, 2, 4, 5, 7]


def test_a_program_is_forgotten_once_its_blocks_were_moved(pool: Pool) -> None:
    idle = IdlePrograms()
    idle.note_use("a", [2])
    assert idle.evict_first(pool, []) == 1
    assert idle.evict_first(pool, []) == 0
    idle.note_use("a", [2])
    idle.note_use(None, [2])
    assert idle.evict_first(pool, []) == 0, "a request without a program used it last"
