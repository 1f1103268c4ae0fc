"""The KV that idle programs leave in the prefix cache is evicted before that of active ones.

vLLM evicts what was used longest ago. But the KV of a program that is over, or of a conversation
whose user is thinking, is worth less than that of a search whose next level comes in a second. So
when a program leaves the daemon's order, the free blocks that it was the last to use go to the
front of vLLM's queue of free blocks. They are still found by prefix until they are needed.

Ref: arXiv 2412.20993 App. D.3.2. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class IdlePrograms:
    """Knows which program used each block last."""

    def __init__(self) -> None:
        self._program_of: dict[int, str] = {}
        """By block."""
        self._blocks_of: dict[str, set[int]] = {}
        """By program: the inverse."""

    def note_use(self, program: str | None, block_ids: Iterable[int]) -> None:
        """A request of this program gives these blocks back."""
        for block_id in block_ids:
            before = self._program_of.pop(block_id, None)
            if before is not None:
                self._blocks_of[before].discard(block_id)
            if program is not None:
                self._program_of[block_id] = program
                self._blocks_of.setdefault(program, set()).add(block_id)

    def evict_first(self, pool: Any, active: Iterable[str]) -> int:
        """Move the free blocks of all programs but the active ones to the front of the queue.

        Returns how many were moved. Forgets those programs.
        """
        idle = self._blocks_of.keys() - set(active)
        blocks = [
            block
            for program in sorted(idle)
            for block_id in sorted(self._blocks_of.pop(program))
            if is_cached(block := pool.blocks[self._forget(block_id)])
        ]
        for block in blocks:
            pool.free_block_queue.remove(block)
        pool.free_block_queue.prepend_n(blocks)
        return len(blocks)

    def _forget(self, block_id: int) -> int:
        del self._program_of[block_id]
        return block_id


def is_cached(block: Any) -> bool:
    """Whether a block is free, and its KV can be found by prefix."""
    return block.ref_cnt == 0 and block.block_hash is not None and not block.is_null
