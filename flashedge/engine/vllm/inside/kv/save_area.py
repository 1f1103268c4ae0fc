"""Where the KV of an engine waits while its memory is the other engine's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import torch

from flashedge.engine.vllm.inside.kv.blocks import block_bytes

SPARE = 2  # host memory that must be free, in sizes of what is saved, for it to stay in memory
CHUNK = 64  # blocks that go through a buffer at a time


class SaveArea:
    """The content of some KV blocks, in host memory or, where that is short, in a file (which has
    no name and ends with the process). It holds one save at a time."""

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._rows: list[torch.Tensor] = []  # in memory, of each layer: (blocks, …)
        self._file: BinaryIO | None = None

    def save(
        self, layers: Sequence[torch.Tensor], block_ids: Sequence[int], folder: Path, to_file: bool
    ) -> int:
        """Copy the blocks; the bytes copied. to_file: even where memory is not short."""
        self.clear()
        self._ids = tuple(block_ids)
        saved_bytes = len(block_ids) * block_bytes(layers)
        if to_file or psutil.virtual_memory().available < SPARE * saved_bytes:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, prefix="kv-")  # noqa: SIM115
        for layer in layers:
            if self._file is None:
                self._rows.append(layer[_index(self._ids, layer)].cpu())
                continue
            for ids in _chunks(self._ids):
                rows = layer[_index(ids, layer)].cpu().contiguous()
                self._file.write(_bytes(rows))
        return saved_bytes

    def load(self, layers: Sequence[torch.Tensor], block_ids: Sequence[int]) -> int:
        """Put back those of the saved blocks that are still wanted and forget all; the bytes
        copied."""
        wanted = frozenset(block_ids)
        if self._file is not None:
            self._file.seek(0)
        for number, layer in enumerate(layers if self._ids else ()):
            done = 0
            for ids in _chunks(self._ids):
                if self._file is None:
                    rows = self._rows[number][done : done + len(ids)]
                else:
                    rows = _read(self._file, layer, len(ids))
                keep = [i for i, block in enumerate(ids) if block in wanted]
                target = _index([ids[i] for i in keep], layer)
                layer[target] = rows[torch.tensor(keep, dtype=torch.long)].to(layer.device)
                done += len(ids)
        loaded = sum(block in wanted for block in self._ids)
        self.clear()
        return loaded * block_bytes(layers)

    def clear(self) -> None:
        self._ids, self._rows = (), []
        if self._file is not None:
            self._file.close()
            self._file = None


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[at : at + CHUNK] for at in range(0, len(ids), CHUNK))


def _index(ids: Sequence[int], layer: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=layer.device)


def _read(file: BinaryIO, layer: torch.Tensor, count: int) -> torch.Tensor:
    """The next `count` rows of `layer`."""
    rows = torch.empty((count, *layer.shape[1:]), dtype=layer.dtype)
    if file.readinto(_bytes(rows)) != rows.nbytes:  # type: ignore[attr-defined]
        raise OSError("the file of saved KV is shorter than what was saved")
    return rows


def _bytes(rows: torch.Tensor) -> memoryview:
    """The memory of contiguous rows on the host, whatever their dtype."""
    flat: Any = rows.view(torch.uint8).numpy()
    return memoryview(flat).cast("B")
