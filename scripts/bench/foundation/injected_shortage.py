"""Lets a generator run out of memory in the middle of a step, when a file appears.

vLLM makes a logits processor in the engine's process and calls it in each step. This one raises
what PyTorch raises on a card that is full. Name it in the generator's `logits_processors` beside
FlashEdge's own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

PROCESSORS = [
    "flashedge.engine.vllm.inside.noise:PositionNoise",
    "scripts.bench.foundation.injected_shortage:InjectedShortage",
]
"""The generator's `logits_processors` with this one."""


def find_trigger(pid: int) -> Path:
    """The file whose appearance lets the engine process `pid` fail. The failing step removes it."""
    return Path(tempfile.gettempdir()) / f"flashedge-shortage-{pid}"


class InjectedShortage(LogitsProcessor):
    """Raises OutOfMemoryError once for each time that the file appears."""

    def __init__(self, *args: Any) -> None:
        self._file = find_trigger(os.getpid())

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._file.exists():
            self._file.unlink()
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. (injected)"
            )
        return logits
