"""The KV tensors of an engine process, block by block: where they lie, how their memory goes back.

A worker extension: vLLM mixes it into its worker class. On CPU the pages of a block go back to
the operating system and come again, all zero, when the block is next written: never NaN, which
attention would spread from masked places. On CUDA vLLM allocates the KV tensor as one piece that
can't be unmapped in parts (that takes virtual addresses reserved at start, as kvcached does): only
the quota moves there, and `kv_memory` says so.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from flashedge.engine.vllm import lazy_kv
from flashedge.engine.vllm.kv_layers import block_bytes, kv_layers, piece_bytes
from flashedge.engine.vllm.save_area import SaveArea

OS = "os"  # beyond the quota, memory goes back to the operating system
KEPT = "kept"  # it stays allocated: only the quota moves

lazy_kv.install()  # vLLM loads this module in each engine process, before its KV tensors

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class KvMemory:
    """Mixed into vLLM's worker, which owns `model_runner`."""

    model_runner: Any

    @property
    def _saved(self) -> SaveArea:
        area = self.__dict__.setdefault("_flashedge_saved", SaveArea())
        assert isinstance(area, SaveArea)
        return area

    def kv_memory(self) -> dict[str, Any]:
        """`{"mechanism": "os" | "kept", "block_bytes": of all layers}`."""
        layers = kv_layers(self.model_runner)
        return {
            "mechanism": OS if layers and layers[0].device.type == "cpu" else KEPT,
            "block_bytes": block_bytes(layers),
        }

    def release_kv_blocks(self, block_ids: list[int]) -> int:
        """Give back the memory of blocks that nobody holds; the bytes given, 0 where it stays."""
        return sum(
            _release(layer, block_ids)
            for layer in kv_layers(self.model_runner)
            if layer.device.type == "cpu"
        )

    def save_kv_blocks(self, block_ids: list[int], folder: str, to_file: bool) -> int:
        """Copy the blocks to where they outlive their memory. See `SaveArea.save`."""
        return self._saved.save(kv_layers(self.model_runner), block_ids, Path(folder), to_file)

    def load_kv_blocks(self, block_ids: list[int]) -> int:
        """Put back those of the saved blocks that are among these; the bytes copied."""
        return self._saved.load(kv_layers(self.model_runner), block_ids)


def runs(block_ids: list[int]) -> Iterator[tuple[int, int]]:
    """(first, how many) of ids that follow each other. block_ids: rising."""
    for _, group in groupby(enumerate(block_ids), key=lambda at: at[1] - at[0]):
        ids = [block for _, block in group]
        yield ids[0], len(ids)


def _release(layer: torch.Tensor, block_ids: list[int]) -> int:
    """Whole pages within the pieces. What shares a page with another block keeps its content."""
    size, stride = piece_bytes(layer), layer.stride(0) * layer.element_size()
    given = 0
    for first, count in runs(block_ids):
        pieces = [(first, count)] if stride == size else [(first + i, 1) for i in range(count)]
        for block, length in pieces:
            start = layer.data_ptr() + block * stride
            given += _dont_need(start, start + length * size)
    return given


def _dont_need(start: int, end: int) -> int:
    """Pages of anonymous memory within [start, end) back to the system."""
    page = mmap.PAGESIZE
    start, end = -(-start // page) * page, end // page * page
    if end <= start:
        return 0
    if _libc.madvise(start, end - start, mmap.MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "madvise refused to take KV memory back")
    return end - start
