"""What the worker of an engine process does with the memory of its KV blocks.

A worker extension: vLLM mixes it into its worker class. Beyond the quota memory goes back to the
operating system on CPU, to the device on CUDA; see `kv_pages`.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.save_area import SaveArea

kv_tensor.install()  # vLLM loads this module in each engine process, before its KV tensors


class KvMemory:
    """Mixed into vLLM's worker."""

    @property
    def _saved(self) -> SaveArea:
        area = self.__dict__.setdefault("_flashedge_saved", SaveArea())
        assert isinstance(area, SaveArea)
        return area

    def kv_memory(self) -> dict[str, Any]:
        """`{"mechanism": see kv_pages, "block_bytes": of all layers}`."""
        kv = kv_tensor.kv_range()
        return {"mechanism": kv.mechanism, "block_bytes": kv.block_bytes}

    def release_kv_blocks(self, block_ids: list[int]) -> int:
        """Give back the memory of blocks that nobody holds; the bytes given."""
        return kv_tensor.kv_range().release(block_ids)

    def claim_kv_blocks(self, block_ids: list[int]) -> str | None:
        """Memory for blocks that are about to be used; None, or why there is none: nothing has
        changed then."""
        try:
            kv_tensor.kv_range().claim(block_ids)
        except MemoryError as error:
            return str(error)
        return None

    def save_kv_blocks(self, block_ids: list[int], folder: str, to_file: bool) -> int:
        """Copy the blocks to where they outlive their memory. See `SaveArea.save`."""
        return self._saved.save(kv_tensor.kv_range().layers, block_ids, Path(folder), to_file)

    def load_kv_blocks(self, block_ids: list[int]) -> int:
        """Put back those of the saved blocks that are among these; the bytes copied."""
        return self._saved.load(kv_tensor.kv_range().layers, block_ids)
