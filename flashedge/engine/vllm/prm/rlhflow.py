"""RLHFlow's PRMs: a conversation in which the assistant answers "+" to each good step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashedge.engine.vllm.prm.step_tag import two_label_extra
from flashedge.engine.vllm.prm.text import PrmTokenizer, plain_text, sigmoid
from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds

_PROBLEM, _STEP = "the-problem-stands-here", "the-step-stands-here"


class RlhflowPrm:
    """user: problem step 1, assistant: +, user: step 2, assistant: +, …

    The score is P("+") against P("-") at the last token before the assistant's answer. The turns'
    frame is read off the checkpoint's chat template once: `head` problem step `ask` "+" `between`
    step `ask` "+" …. The answer to the last step is left out: causal, it can't change a score.
    Ref: RLHFlow/RLHF-Reward-Modeling, math-rm/prm_evaluate.py (its "-3 position").
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer = PrmTokenizer(path)
        good, bad = options.get("good_token", "+"), options.get("bad_token", "-")
        self._extra = two_label_extra(
            path,
            tokenizer,
            good=tokenizer.one(tokenizer.bare(good), good),
            bad=tokenizer.one(tokenizer.bare(bad), bad),
        )
        self._head, ask, between = _frame(path, tokenizer.hf, good, options.get("system_prompt"))
        self._ask = tokenizer.bare(ask)
        self._between = tokenizer.bare(between)

    @property
    def engine_extra(self) -> Mapping[str, Any]:
        return self._extra

    def prefix(self, problem: Problem) -> TokenIds:
        return self._tokenizer.bare(self._head + plain_text(problem))

    def step(self, text: str, index: int) -> tuple[TokenIds, int]:
        step = text.strip()
        start = (
            (*self._between, *self._tokenizer.bare(step))
            if index
            else self._tokenizer.after(f" {step}")
        )
        ids = (*start, *self._ask)
        return ids, len(ids)

    def score(self, row: torch.Tensor) -> float:
        return sigmoid(float(row[0]))


def _frame(path: Path, hf: Any, good: str, system: str | None) -> tuple[str, str, str]:
    """(head, ask, between) of the chat template. Raises CheckpointError if it has no such form."""
    if hf.chat_template is None:
        raise CheckpointError(f"{path}: the tokenizer has no chat template")
    turns = [{"role": "system", "content": system}] if system else []
    turns += [
        {"role": "user", "content": _PROBLEM},
        {"role": "assistant", "content": good},
        {"role": "user", "content": _STEP},
    ]
    text = hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    head, found, rest = text.partition(_PROBLEM)
    middle, again, ask = rest.partition(_STEP)
    if not (found and again and ask and middle.startswith(ask + good)):
        raise CheckpointError(
            f"{path}: the chat template does not open the assistant's turn as it goes on",
            hint="the checkpoint is not of family rlhflow, or its template is another model's",
        )
    return head, ask, middle.removeprefix(ask)
