"""The interface of a PRM family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from flashedge.types import Problem, TokenIds


class PrmFormat(Protocol):
    """How one PRM expects a path to be written, and how its score is read.

    Each step is tokenized once and the ids are joined. Tokenizing the whole text would give other
    ids, and only joined ids let a longer path share the KV of a shorter one.
    """

    @property
    def engine_extra(self) -> Mapping[str, Any]:
        """Fields of vLLM's AsyncEngineArgs that load this family."""
        ...

    def encode_problem(self, problem: Problem) -> TokenIds:
        """Encode what stands before the first step."""
        ...

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        """Encode one step. `index` counts from 0.

        Returns its ids, and how many of them there are up to and including the scored token.
        """
        ...

    def read_score(self, row: torch.Tensor) -> float:
        """Convert the model's output row at the scored token to a score in [0, 1]."""
        ...


PrmFamily = Callable[[Path, Mapping[str, Any]], PrmFormat]
"""Builds a format from a checkpoint folder and the options of its models.toml entry."""
