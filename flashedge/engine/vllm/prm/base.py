"""What the verifier needs of a PRM family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from flashedge.types import Problem, TokenIds


class PrmFormat(Protocol):
    """One PRM's way of writing a path and of reading a score.

    Each step is tokenized once and the ids are joined: tokenizing the whole text gives other ids,
    and only joined ids let a longer path share the KV of a shorter one.
    """

    @property
    def engine_extra(self) -> Mapping[str, Any]:
        """Fields of vLLM's AsyncEngineArgs that load this family."""
        ...

    def prefix(self, problem: Problem) -> TokenIds: ...

    def step(self, text: str, index: int) -> tuple[TokenIds, int]:
        """Ids of one step (`index` counts from 0), and how many of the path's ids, up to and
        with this step's scored token, follow the step's start."""
        ...

    def score(self, row: torch.Tensor) -> float:
        """Score in [0, 1] from the model's output row at the scored token."""
        ...


# Builds a format from a checkpoint folder and the options of its models.toml entry.
PrmFamily = Callable[[Path, Mapping[str, Any]], PrmFormat]
