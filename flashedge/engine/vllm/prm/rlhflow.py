"""RLHFlow's PRMs: a conversation in which the assistant answers "+" to each good step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashedge.engine.vllm.prm.base import LogitScore, PrmTokenizer, render_plain_text
from flashedge.engine.vllm.prm.step_tag import build_two_label_extra
from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds

_PROBLEM, _STEP = "the-problem-stands-here", "the-step-stands-here"


class RlhflowPrm(LogitScore):
    """user: problem step 1, assistant: +, user: step 2, assistant: +, …

    The score is P("+") against P("-") at the last token before the assistant's answer. The text
    around problem and steps is read from the checkpoint's chat template once: a path is written as
    `head` problem step `ask` "+" `between` step `ask` "+" …. The answer to the last step is left
    out, since nothing that follows a scored token can change its score.
    Ref: RLHFlow/RLHF-Reward-Modeling, math-rm/prm_evaluate.py (its "-3 position").
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer = PrmTokenizer(path)
        good, bad = options.get("good_token", "+"), options.get("bad_token", "-")
        self.engine_extra = build_two_label_extra(
            path,
            tokenizer,
            good=tokenizer.require_single_id(tokenizer.encode_plain(good), good),
            bad=tokenizer.require_single_id(tokenizer.encode_plain(bad), bad),
        )
        system = options.get("system_prompt")
        self._head, ask, between = map(
            tokenizer.spell, _read_template(path, tokenizer.hf, good, system)
        )
        self._ask = tokenizer.encode_plain(ask)
        self._between = tokenizer.encode_plain(between)

    def encode_problem(self, problem: Problem) -> TokenIds:
        return self._tokenizer.encode_plain(self._head + render_plain_text(problem))

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        step = text.strip()
        start = (
            (*self._between, *self._tokenizer.encode_plain(step))
            if index
            else self._tokenizer.encode_continuation(f" {step}")
        )
        ids = (*start, *self._ask)
        return ids, len(ids)


def _read_template(path: Path, hf: Any, good: str, system: str | None) -> tuple[str, str, str]:
    """Read (head, ask, between) from the chat template.

    Raises CheckpointError if the template does not have this form.
    """
    if hf.chat_template is None:
        raise CheckpointError(f"{path}: the tokenizer has no chat template")
    turns = [{"role": "system", "content": system}] if system else []
    turns += [
        {"role": "user", "content": _PROBLEM},
        {"role": "assistant", "content": good},
        {"role": "user", "content": _STEP},
    ]
    text = hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    head, has_problem, rest = text.partition(_PROBLEM)
    middle, has_step, ask = rest.partition(_STEP)
    if not (has_problem and has_step and ask and middle.startswith(ask + good)):
        raise CheckpointError(
            f"{path}: the chat template opens the assistant's turn in another way than it "
            "writes that turn later",
            hint="the checkpoint is not of family rlhflow, or its template is another model's",
        )
    return head, ask, middle.removeprefix(ask)
