"""The content of KV blocks in host memory, for an engine that has given its memory up.

On a card the host memory is pinned, and copies run on a stream of their own, so that the host maps
further memory meanwhile. Torch keeps pinned memory for later use, since pinning it takes longer
than the copies.
"""

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psutil
import torch

from flashedge.engine.vllm.inside.kv.blocks import count_block_bytes
from flashedge.engine.vllm.inside.step_record import get_step_record

log = logging.getLogger(__name__)

SPARE_FACTOR = 2
"""KV is saved if this many times its size is free in host memory. So other programs have at least
as much left as the copy takes."""
CHUNK_BYTES = 8 << 20
"""Bytes of a layer that are copied at once. Chosen by hand: ten times as much takes more of the
card's memory for the copy and goes longer without a sign of life; a tenth needs ten times as many
calls."""

Chunk = tuple[tuple[int, ...], list[torch.Tensor]]
"""Block ids in rising order, and their rows in each layer: (blocks, …)."""


class SaveArea:
    """Saves blocks in rising order, in one call or several, and loads them in the same order."""

    def __init__(self, cuda: Any = None) -> None:
        """cuda: torch.cuda, if the blocks are on a card."""
        self._cuda, self._stream = cuda, cuda and cuda.Stream()
        self._chunks: list[Chunk] = []
        self._pins = cuda is not None
        self._pinned_bytes = 0

    def save(self, layers: Sequence[torch.Tensor], block_ids: Sequence[int]) -> int:
        """Copy these blocks, behind those that are saved already. Returns the bytes copied. Raises
        MemoryError if host memory is short, and what torch raises: nothing is saved then."""
        block_bytes = count_block_bytes(layers)
        size = len(block_ids) * block_bytes
        held = sum(len(ids) for ids, _ in self._chunks) * block_bytes
        # Torch keeps pinned memory for the next rows. What is held is gone from the available.
        fresh = max(0, held + size - max(held, self._pinned_bytes))
        with self._queue_copies():
            if psutil.virtual_memory().available < SPARE_FACTOR * fresh:
                raise MemoryError(f"host memory is too short for {fresh} bytes of KV")
            for ids in _iterate_chunks(block_ids, layers):
                index = self._copy_index(ids, layers[0])
                rows = [self._copy_out(layer.index_select(0, index)) for layer in layers]
                self._chunks.append((tuple(ids), rows))
                get_step_record().note_progress()
            if self._stream is not None:
                self._stream.synchronize()  # an error of a copy is raised here
        self._pinned_bytes += fresh if self._pins else 0
        return size

    def load(self, layers: Sequence[torch.Tensor], block_ids: Collection[int], end: int) -> int:
        """Copy back those of the saved blocks that are in `block_ids`, and forget the others.
        Returns the bytes copied. The next step on the card waits for them, the host does not.

        end: leave what is saved of this block and those behind it for a later call."""
        wanted, loaded = frozenset(block_ids), 0
        with self._queue_copies():
            while chunk := self._take_chunk(end):
                ids, rows = chunk
                keep = [place for place, block in enumerate(ids) if block in wanted]
                target = self._copy_index([ids[place] for place in keep], layers[0])
                chosen = None if len(keep) == len(ids) else self._copy_index(keep, layers[0])
                for layer, row in zip(layers, rows, strict=True):
                    there = row.to(layer.device, non_blocking=True)
                    if chosen is not None:
                        there = there.index_select(0, chosen)
                    layer.index_copy_(0, target, there)
                loaded += len(keep)
                get_step_record().note_progress()
        if self._stream is not None:
            self._cuda.current_stream().wait_stream(self._stream)
        return loaded * count_block_bytes(layers)

    def _take_chunk(self, end: int) -> Chunk | None:
        """Take the blocks of the first chunk that lie in front of block `end`, None if none do."""
        if not self._chunks:
            return None
        ids, rows = self._chunks.pop(0)
        count = bisect_left(ids, end)
        if count < len(ids):
            self._chunks.insert(0, (ids[count:], [row[count:] for row in rows]))
        return (ids[:count], [row[:count] for row in rows]) if count else None

    @contextmanager
    def _queue_copies(self) -> Iterator[None]:
        """Run the block's copies on their own stream, behind the step in flight. If one of them
        fails, everything that is saved is forgotten."""
        stream: AbstractContextManager[None] = nullcontext()
        if self._stream is not None:
            self._stream.wait_stream(self._cuda.current_stream())
            stream = self._cuda.stream(self._stream)
        try:
            with torch.inference_mode(), stream:  # vLLM may have made the layers in it
                yield
        except BaseException:
            self._chunks = []
            raise

    def _copy_out(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self._cuda is None else self._make_rows(rows).copy_(rows, non_blocking=True)

    def _copy_index(self, ids: Sequence[int], layer: torch.Tensor) -> torch.Tensor:
        index = torch.tensor(ids, dtype=torch.long)
        if self._pins:
            index = self._make_rows(index).copy_(index)
        return index.to(layer.device, non_blocking=True)

    def _make_rows(self, like: torch.Tensor) -> torch.Tensor:
        if self._pins:
            try:
                return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
            except RuntimeError as error:  # e.g. a limit of the system
                log.warning("KV is saved in memory that is not pinned, more slowly: %s", error)
                self._pins = False
        return torch.empty(like.shape, dtype=like.dtype)


def _iterate_chunks(ids: Sequence[int], layers: Sequence[torch.Tensor]) -> Iterator[Sequence[int]]:
    count = max(1, CHUNK_BYTES * len(layers) // count_block_bytes(layers))
    return (ids[at : at + count] for at in range(0, len(ids), count))
