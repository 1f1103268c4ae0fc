"""Maps, saves and loads KV blocks in an engine's worker, for `quota`. Checked with vLLM 0.32.0."""

from __future__ import annotations

from typing import Any

import torch

from flashedge.engine.vllm.inside import start_stages
from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.blocks import KEPT
from flashedge.engine.vllm.inside.kv.save_area import SaveArea
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.runner_kind import check_runner
from flashedge.engine.vllm.inside.step_memory import measure_step
from flashedge.engine.vllm.inside.step_record import get_step_record

# vLLM imports this module in each worker's process before it allocates KV.
apply_patches(ProcessKind.WORKER)
start_stages.begin()
get_step_record()  # from here on an error that ends the start is written into it


class KvMemory:
    """Mixed into vLLM's worker (`worker_extension_cls`)."""

    model_runner: Any

    @property
    def _save_area(self) -> SaveArea:
        area: SaveArea | None = self.__dict__.get("_flashedge_save_area")
        if area is None:
            is_card = kv_tensor.get_kv_range().layers[0].is_cuda
            area = self.__dict__["_flashedge_save_area"] = SaveArea(torch.cuda if is_card else None)
        return area

    def describe_kv_memory(self) -> dict[str, Any]:
        """Return `mechanism` (see `Pages`) and `block_bytes`. Raises EngineError if the model
        runner is of the wrong kind, or its KV is not ours."""
        start_stages.end()  # since this is the daemon's first call
        check_runner(self.model_runner, self.model_runner.vllm_config)
        kv_tensor.check_layers(self.model_runner.kv_caches)
        kv = kv_tensor.get_kv_range()
        return {"mechanism": kv.mechanism, "block_bytes": kv.block_bytes}

    def measure_step_memory(self) -> dict[str, int]:
        """See `measure_step`. What granules take beyond the blocks counts as the engine's."""
        kv = kv_tensor.get_kv_range()
        kv_bytes = max(0, kv.mapped_bytes - kv.rounding_bytes)
        return measure_step(self.model_runner, kv_bytes, kv_is_in_torch=kv.mechanism == KEPT)

    def release_kv_blocks(self, block_ids: list[int]) -> int:
        return kv_tensor.get_kv_range().release(block_ids)

    def claim_kv_blocks(self, block_ids: list[int]) -> int | str:
        """Returns the bytes mapped, or why there is too little memory: then nothing has changed."""
        try:
            return kv_tensor.get_kv_range().claim(block_ids)
        except MemoryError as error:
            return str(error)

    def save_kv_blocks(self, block_ids: list[int]) -> int:
        return self._save_area.save(kv_tensor.get_kv_range().layers, block_ids)

    def load_kv_blocks(self, block_ids: list[int], end: int) -> int:
        return self._save_area.load(kv_tensor.get_kv_range().layers, block_ids, end)
