"""Maps, saves and loads KV blocks in an engine's worker, for `quota`. Checked with vLLM 0.32.0."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import torch

from flashedge.engine.vllm.inside import start_stages
from flashedge.engine.vllm.inside.kv import tensor as kv_tensor
from flashedge.engine.vllm.inside.kv.blocks import KEPT, count_block_bytes
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
        area: SaveArea = self.__dict__.setdefault("_flashedge_save_area", SaveArea())
        return area

    def describe_kv_memory(self) -> dict[str, Any]:
        """Return `mechanism` (see `Pages`) and `block_bytes`. Raises EngineError if the model
        runner is of the wrong kind, or its KV is not ours."""
        start_stages.end()  # since this is the daemon's first call
        check_runner(self.model_runner, self.model_runner.vllm_config)
        kv_tensor.check_layers(self.model_runner.kv_caches)
        kv = kv_tensor.get_kv_range()
        return {"mechanism": kv.mechanism, "block_bytes": kv.block_bytes}

    def measure_step_memory(self, kv_bytes: int) -> dict[str, int]:
        kv_is_in_torch = kv_tensor.get_kv_range().mechanism == KEPT
        return measure_step(self.model_runner, kv_bytes, kv_is_in_torch=kv_is_in_torch)

    def release_kv_blocks(self, block_ids: list[int]) -> int:
        return kv_tensor.get_kv_range().release(block_ids)

    def claim_kv_blocks(self, block_ids: list[int]) -> str | None:
        """Returns None, or why there is too little memory: then nothing has changed."""
        try:
            kv_tensor.get_kv_range().claim(block_ids)
        except MemoryError as error:
            return str(error)
        return None

    def save_kv_blocks(self, block_ids: list[int], folder: str, to_file: bool) -> int:
        layers = kv_tensor.get_kv_range().layers
        return self._save_area.save(layers, block_ids, Path(folder), to_file)

    def load_kv_blocks(self, block_ids: list[int]) -> int:
        return self._save_area.load(kv_tensor.get_kv_range().layers, block_ids)


SPARE_FACTOR = 2
"""KV is saved in host memory if this many times its size is free, else in a file. So other programs
have at least as much left as the copy takes."""
CHUNK_BLOCKS = 64
"""Blocks of a layer that are copied at once. Chosen by hand: more need more memory for the copy and
go longer without a sign of life, fewer need more calls."""


class SaveArea:
    """Holds the content of KV blocks while the other engine owns the memory: in host memory, or, if
    that is short, in a file that has no name."""

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._rows: list[torch.Tensor] = []  # (blocks, …) by layer and chunk, if in memory
        self._file: BinaryIO | None = None

    def save(
        self, layers: Sequence[torch.Tensor], block_ids: Sequence[int], folder: Path, to_file: bool
    ) -> int:
        """Copy these blocks, and return the bytes copied. Raises OSError if the file can't be
        written: nothing is saved then. folder: of the file. to_file: always use a file."""
        self.clear()
        self._ids = tuple(block_ids)
        saved_bytes = len(block_ids) * count_block_bytes(layers)
        with ExitStack() as on_error:
            on_error.callback(self.clear)
            if to_file or psutil.virtual_memory().available < SPARE_FACTOR * saved_bytes:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=folder, prefix="kv-")  # noqa: SIM115
            for layer in layers:
                for ids in _iterate_chunks(self._ids):
                    rows = layer.index_select(0, _make_index(ids, layer)).cpu().contiguous()
                    if self._file is None:
                        self._rows.append(rows)
                    else:
                        self._file.write(_view_bytes(rows))
                    get_step_record().note_progress()
            if self._file is not None:
                self._file.flush()
            on_error.pop_all()
        return saved_bytes

    def load(self, layers: Sequence[torch.Tensor], block_ids: Sequence[int]) -> int:
        """Copy back those of the saved blocks that are in `block_ids`, and forget all. Returns the
        bytes copied. Raises OSError if the file is incomplete."""
        wanted, in_memory, file = frozenset(block_ids), iter(self._rows), self._file
        try:
            if file is not None:
                file.seek(0)
            for layer in layers:
                for ids in _iterate_chunks(self._ids):
                    rows = _read_rows(file, layer, len(ids)) if file else next(in_memory)
                    keep = [i for i, block in enumerate(ids) if block in wanted]
                    target = _make_index([ids[i] for i in keep], layer)
                    kept = rows.index_select(0, torch.tensor(keep, dtype=torch.long))
                    layer.index_copy_(0, target, kept.to(layer.device))
                    get_step_record().note_progress()
            return sum(block in wanted for block in self._ids) * count_block_bytes(layers)
        finally:
            self.clear()

    def clear(self) -> None:
        self._ids, self._rows = (), []
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # it could not be written in full
                file.close()


def _iterate_chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[at : at + CHUNK_BLOCKS] for at in range(0, len(ids), CHUNK_BLOCKS))


def _make_index(ids: Sequence[int], layer: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=layer.device)


def _read_rows(file: BinaryIO, layer: torch.Tensor, count: int) -> torch.Tensor:
    rows = torch.empty((count, *layer.shape[1:]), dtype=layer.dtype)
    if file.readinto(_view_bytes(rows)) != rows.nbytes:  # type: ignore[attr-defined]
        raise OSError("the file of saved KV is incomplete")
    return rows


def _view_bytes(rows: torch.Tensor) -> memoryview:
    flat: Any = rows.view(torch.uint8).numpy()
    return memoryview(flat).cast("B")
