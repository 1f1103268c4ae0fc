"""Lets a generator run out of memory in the middle of a step, when a file appears.

vLLM makes a logits processor in the engine's process and calls it in each step. This one raises
what PyTorch raises on a card that is full.
"""

import os
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from scripts.bench.foundation.shortage_trigger import find_trigger


class InjectedShortage(LogitsProcessor):  # type: ignore[misc]
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
