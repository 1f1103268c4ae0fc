"""Outcome reward models with a classification head: one score for a whole answer, any domain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from flashedge.engine.vllm.prm.base import (
    LogitScore,
    PrmTokenizer,
    build_token_pooler,
    render_chat_turns,
)
from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds


class SequenceClassification(LogitScore):
    """Skywork-Reward-V2 and its kind: `…ForSequenceClassification` with one label.

    The text is the chat template's, with the answer as the assistant's turn, and the logit is read
    at the last token that is not padding, as transformers does. That matters where the template
    ends with the padding token itself, as Llama 3's `<|eot_id|>` often is.

    The logit is a Bradley-Terry reward without a scale of its own: only differences between answers
    to one problem mean something. The score is its sigmoid, which keeps the order and lies in
    [0, 1], but is no probability of being right.
    Ref: the model card of Skywork/Skywork-Reward-V2-Qwen3-8B; arXiv 2507.01352.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = PrmTokenizer(path)
        self._system: str | None = options.get("system_prompt")
        self._tokenizer.require_chat_template()
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        if config.num_labels != 1:
            raise CheckpointError(
                f"{path}: the classification head has {config.num_labels} labels; a reward model "
                "has one",
                hint="choose a reward model, such as Skywork/Skywork-Reward-V2-Qwen3-4B",
            )
        self._padding: int | None = config.pad_token_id
        self.engine_extra: Mapping[str, Any] = {
            "runner": "pooling",
            "pooler_config": build_token_pooler(),
        }

    def encode_answer(self, problem: Problem, answer: str) -> tuple[TokenIds, int]:
        turns = [*render_chat_turns(problem, self._system), ("assistant", answer)]
        ids = self._tokenizer.encode_rendered(self._tokenizer.render_chat(turns))
        last = len(ids)
        while last > 1 and ids[last - 1] == self._padding:
            last -= 1
        return ids, last
