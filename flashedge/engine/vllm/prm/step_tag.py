"""Math-Shepherd and its kind: a causal model predicts "+" or "-" at a tag after each step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashedge.engine.vllm.prm.text import (
    PrmTokenizer,
    build_token_pooler,
    render_plain_text,
    sigmoid,
)
from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds

_NUMBERED = re.compile(r"Step \d+\s*:")


class StepTagPrm:
    r"""bos problem " Step 1: … ки" "\nStep 2: … ки" …; the score is P("+") against P("-") at ки.

    The tag and both labels follow a space, as in the training data ("… 18 ки" was trained to
    become "… 18 +"). In a SentencePiece vocabulary they are "▁ки", "▁+", "▁-" (12902, 648, 387).
    A step's own newlines become spaces, because a newline begins the next step in this format. A
    step that does not begin with "Step k:" gets it.
    Ref: the model card of peiyi9979/math-shepherd-mistral-7b-prm; arXiv:2312.08935.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = PrmTokenizer(path)
        self._tag = self._find_token(options.get("step_token", "ки"))
        good = self._find_token(options.get("good_token", "+"))
        bad = self._find_token(options.get("bad_token", "-"))
        self._extra = build_two_label_extra(path, self._tokenizer, good=good, bad=bad)

    def _find_token(self, token: str) -> int:
        """The id of a token that follows a space."""
        ids = self._tokenizer.encode_continuation(f" {token}")
        return self._tokenizer.require_single_id(ids, token)

    @property
    def engine_extra(self) -> Mapping[str, Any]:
        return self._extra

    def encode_problem(self, problem: Problem) -> TokenIds:
        return self._tokenizer.encode_beginning(render_plain_text(problem))

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        line = " ".join(part.strip() for part in text.strip().splitlines() if part.strip())
        if not _NUMBERED.match(line):
            line = f"Step {index + 1}: {line}".rstrip()
        ids = self._tokenizer.encode_continuation(("\n" if index else " ") + line)
        return (*ids, self._tag), len(ids) + 1

    def read_score(self, row: torch.Tensor) -> float:
        return sigmoid(float(row[0]))


def build_two_label_extra(
    path: Path, tokenizer: PrmTokenizer, *, good: int, bad: int
) -> Mapping[str, Any]:
    """Build AsyncEngineArgs that make a causal checkpoint return logit(good) - logit(bad).

    They use vLLM's own conversion: score.weight = lm_head[good] - lm_head[bad] in fp32. The sigmoid
    of its output is the softmax over the two logits. vLLM takes the labels as they are spelled in
    the vocabulary.

    Raises CheckpointError when the checkpoint is not a causal model.
    """
    named = json.loads((path / "config.json").read_text(encoding="utf-8")).get("architectures")
    causal = next((a for a in named or () if a.endswith("ForCausalLM")), None)
    if causal is None:
        raise CheckpointError(f"{path} is no causal language model: its architecture is {named}")
    labels = tokenizer.hf.convert_ids_to_tokens([bad, good])
    if tokenizer.hf.convert_tokens_to_ids(labels) != [bad, good]:
        raise CheckpointError(f"{path}: the label tokens {labels} are not unique in the vocabulary")
    return {
        "runner": "pooling",
        "tokenizer_mode": "hf",
        "hf_overrides": {
            "architectures": [causal.replace("ForCausalLM", "ForSequenceClassification")],
            "classifier_from_token": labels,
            "method": "from_2_way_softmax",
            "num_labels": 1,
        },
        "pooler_config": build_token_pooler(),
    }
