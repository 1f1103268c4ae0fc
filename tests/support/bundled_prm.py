"""The bundled verifier by plain transformers, to compare an engine's scores with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

import flashedge

FOLDER = Path(flashedge.__file__).parent / "bundled" / "prm"


class BundledPrm:
    """Scores whole paths, as the model's card describes it."""

    def __init__(self) -> None:
        self._weights = load_file(FOLDER / "model.safetensors")
        self._body: Any = Qwen2Model(Qwen2Config.from_pretrained(FOLDER)).eval()
        own = {
            n.removeprefix("model."): w for n, w in self._weights.items() if n.startswith("model.")
        }
        self._body.load_state_dict(own)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)

    def score(self, problem: str, steps: Sequence[str]) -> list[float]:
        """(len(steps),) in [0, 1]"""
        turns = [{"role": "user", "content": problem}]
        text = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        ids, marks = self._tokenizer.encode(text, add_special_tokens=False), []
        for step in steps:
            ids += self._tokenizer.encode(step.strip() + "<extra_0>", add_special_tokens=False)
            marks.append(len(ids) - 1)
        weights = self._weights
        with torch.inference_mode():
            hidden = self._body(torch.tensor([ids])).last_hidden_state[0][marks]
            inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
            logits = inner @ weights["score.2.weight"].T + weights["score.2.bias"]
        scores: list[float] = logits.softmax(-1)[:, 1].tolist()
        return scores
