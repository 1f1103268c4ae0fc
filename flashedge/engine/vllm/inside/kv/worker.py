"""What the worker of an engine process does with the memory of its KV blocks.

vLLM mixes this class into its worker (`worker_extension_cls`). `control` calls its methods.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashedge.engine.vllm.inside import start_stages
from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.pages import KEPT
from flashedge.engine.vllm.inside.kv.save_area import SaveArea
from flashedge.engine.vllm.inside.memory.step_memory import measure_step
from flashedge.engine.vllm.inside.model_runner import check_runner
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.step_record import get_step_record

# vLLM imports this module in each worker's process before it allocates KV.
apply_patches(ProcessKind.WORKER)
start_stages.begin()
get_step_record()  # from here on an error that ends the start is written into it


class KvMemory:
    """Mixed into vLLM's worker."""

    model_runner: Any
    """The worker's own."""

    @property
    def _save_area(self) -> SaveArea:
        area = self.__dict__.setdefault("_flashedge_save_area", SaveArea())
        assert isinstance(area, SaveArea)
        return area

    def describe_kv_memory(self) -> dict[str, Any]:
        """`{"mechanism": see `pages`, "block_bytes": bytes of a block in all layers}`.

        Raises EngineError if the model runner's KV is not in our memory. The daemon calls this
        before the first request.
        """
        start_stages.end()
        check_runner(self.model_runner, self.model_runner.vllm_config)
        kv_tensor.check_layers(self.model_runner.kv_caches)
        kv = kv_tensor.get_kv_range()
        return {"mechanism": kv.mechanism, "block_bytes": kv.block_bytes}

    def measure_step_memory(self, kv_bytes: int) -> dict[str, int]:
        """See `step_memory.measure_step`. kv_bytes: of the KV that has memory now."""
        is_torchs = kv_tensor.get_kv_range().mechanism == KEPT
        return measure_step(self.model_runner, kv_bytes, is_kv_torchs=is_torchs)

    def release_kv_blocks(self, block_ids: list[int]) -> int:
        """Unmap the memory of blocks that nobody uses. Returns the bytes unmapped."""
        return kv_tensor.get_kv_range().release(block_ids)

    def claim_kv_blocks(self, block_ids: list[int]) -> str | None:
        """Map memory for blocks that are about to be used. Returns why that failed, or None.

        After a failure nothing has changed.
        """
        try:
            kv_tensor.get_kv_range().claim(block_ids)
        except MemoryError as error:
            return str(error)
        return None

    def save_kv_blocks(self, block_ids: list[int], folder: str, to_file: bool) -> int:
        """Copy blocks to where they outlive their memory. See `SaveArea.save`."""
        layers = kv_tensor.get_kv_range().layers
        return self._save_area.save(layers, block_ids, Path(folder), to_file)

    def load_kv_blocks(self, block_ids: list[int]) -> int:
        """Copy the saved blocks back that are among `block_ids`. Returns the bytes copied."""
        return self._save_area.load(kv_tensor.get_kv_range().layers, block_ids)
