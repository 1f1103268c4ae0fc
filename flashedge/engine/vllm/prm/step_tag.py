"""Math-Shepherd and its kind: a causal model says "+" or "-" at a tag after each step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashedge.engine.vllm.prm.text import PrmTokenizer, logits_of_tokens, plain_text, sigmoid
from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds

_NUMBERED = re.compile(r"Step \d+\s*:")


class StepTagPrm:
    r"""bos problem " Step 1: … ки" "\nStep 2: … ки" …; the score is P("+") against P("-") at ки.

    The tag and both labels stand after a space, as in the training data ("… 18 ки" was trained to
    become "… 18 +"); in a SentencePiece vocabulary they are "▁ки", "▁+", "▁-" (12902, 648, 387).
    A step's own newlines become spaces, since a newline begins the next step there; "Step k:" is
    put before a step that does not say it itself.
    Ref: the model card of peiyi9979/math-shepherd-mistral-7b-prm; arXiv:2312.08935.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer = PrmTokenizer(path)

        def spaced(token: str) -> int:
            return tokenizer.one(tokenizer.after(f" {token}"), token)

        self._tag = spaced(options.get("step_token", "ки"))
        good = spaced(options.get("good_token", "+"))
        bad = spaced(options.get("bad_token", "-"))
        self._extra = two_label_extra(path, tokenizer, good=good, bad=bad)

    @property
    def engine_extra(self) -> Mapping[str, Any]:
        return self._extra

    def prefix(self, problem: Problem) -> TokenIds:
        return self._tokenizer.whole(plain_text(problem))

    def step(self, text: str, index: int) -> tuple[TokenIds, int]:
        line = " ".join(part.strip() for part in text.strip().splitlines() if part.strip())
        if not _NUMBERED.match(line):
            line = f"Step {index + 1}: {line}".rstrip()
        ids = (*self._tokenizer.after(("\n" if index else " ") + line), self._tag)
        return ids, len(ids)

    def score(self, row: torch.Tensor) -> float:
        return sigmoid(float(row[0]))


def two_label_extra(
    path: Path, tokenizer: PrmTokenizer, *, good: int, bad: int
) -> Mapping[str, Any]:
    """AsyncEngineArgs that make a causal checkpoint answer logit(good) - logit(bad) at every token.

    vLLM's own conversion: score.weight = lm_head[good] - lm_head[bad] in fp32; the sigmoid of its
    output is the softmax over the two logits. It takes the labels as the vocabulary spells them.
    Raises CheckpointError when the checkpoint is no causal model.
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
        "pooler_config": logits_of_tokens(),
    }
