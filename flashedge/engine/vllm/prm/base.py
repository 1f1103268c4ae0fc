"""The interface of a verifier family: one form for judges of steps, one for judges of answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from flashedge.types import Problem, TokenIds


class VerifierFormat(Protocol):
    """What both forms share: how the checkpoint is loaded and how a score is read."""

    @property
    def engine_extra(self) -> Mapping[str, Any]:
        """Fields of vLLM's AsyncEngineArgs that load this family."""
        ...

    def read_score(self, row: torch.Tensor) -> float:
        """Convert the model's output row at the scored token to a score in [0, 1]."""
        ...


@runtime_checkable
class PrmFormat(VerifierFormat, Protocol):
    """How one process reward model expects a path to be written.

    Each step is tokenized once and the ids are joined. Tokenizing the whole text would give other
    ids, and only joined ids let a longer path share the KV of a shorter one.
    """

    def encode_problem(self, problem: Problem) -> TokenIds:
        """Encode what stands before the first step."""
        ...

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        """Encode one step. `index` counts from 0.

        Returns its ids, and how many of them there are up to and including the scored token.
        """
        ...


@runtime_checkable
class AnswerFormat(VerifierFormat, Protocol):
    """How one outcome reward model expects a problem and an answer to be written.

    An answer is scored once, so nothing is gained by joining pieces: the whole text is tokenized,
    as the model's authors do. Answers to one problem still share the KV of the problem.
    """

    def encode_answer(self, problem: Problem, answer: str) -> tuple[TokenIds, int]:
        """Encode the problem and a whole answer.

        Returns the ids, and how many of them there are up to and including the scored token.
        """
        ...


FormatBuilder = Callable[[Path, Mapping[str, Any]], PrmFormat | AnswerFormat]
"""Builds a format from a checkpoint folder and the options of its models.toml entry."""
