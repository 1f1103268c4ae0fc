"""Qwen2.5-Math-PRM and the bundled verifier: a separator after each step, two classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from vllm.config import PoolerConfig

from flashedge.engine.vllm.codec import HFCodec
from flashedge.engine.vllm.prm.base import THINKING_TAGS
from flashedge.errors import CheckpointError
from flashedge.types import Message, Problem, TokenIds


class QwenPrm:
    """`Qwen2ForProcessRewardModel`: chat(problem), then step <extra_0> step <extra_0> …

    The score is softmax(logits)[1] at the separator. The end of the turn that the model card's
    example appends is left out, since nothing that follows a scored token can change its score.
    Ref: the model card of Qwen/Qwen2.5-Math-PRM-7B.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        token = options.get("step_token", "<extra_0>")
        self._codec = HFCodec(path, own=(token,), words=THINKING_TAGS)
        self._system: str | None = options.get("system_prompt")
        ids = self._codec.encode(token)
        if len(ids) != 1:
            raise CheckpointError(
                f"{path}: the step token {token!r} is not one token of the verifier's vocabulary",
                hint="the checkpoint is of another family, or its tokenizer is another model's",
            )
        self._separator = ids[0]
        self.engine_extra: Mapping[str, Any] = {
            "runner": "pooling",
            "pooler_config": PoolerConfig(task="token_classify", tok_pooling_type="ALL"),
        }

    def encode_problem(self, problem: Problem) -> TokenIds:
        messages = problem.messages
        if self._system and messages[0].role != "system":
            messages = (Message(role="system", content=self._system), *messages)
        return self._codec.encode_chat(messages)

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        ids = (*self._codec.encode_text(text.strip()), self._separator)
        return ids, len(ids)

    def read_score(self, row: torch.Tensor) -> float:
        return float(row[1])


class ReasonfluxPrm(QwenPrm):
    """chat(problem), then step <extra_0> step <extra_0> …; the score is softmax(logits)[1].

    The form and the head are those of Qwen2.5-Math-PRM. What differs is what the model was trained
    on: the steps of a trajectory (`<think>` … `</think>`, split at blank lines) before those of the
    final answer. So there is no system prompt beyond the chat template's own.

    The paper also rates the whole trajectory, by one separator behind all of it. That is not done
    here: a path's score is the aggregate of its steps' scores.

    Not checked, since the published files were not at hand: that config.json names the architecture
    Qwen2ForProcessRewardModel, which vLLM needs. ReasonFlux-PRM-1.5B is of another kind: one score
    for problem and answer, from a head in a file `reward_head.pt` that vLLM does not read.
    Ref: arXiv 2506.18896; Gen-Verse/ReasonFlux, ReasonFlux_PRM/README.md and utils/rm_utils.py.
    """
