"""Outcome reward models, which score a whole answer: by a head, or by P("Yes") against P("No")."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from flashedge.engine.vllm.prm import base
from flashedge.engine.vllm.prm.step_tag import build_two_label_extra
from flashedge.errors import CheckpointError, ConfigError
from flashedge.types import Problem, TokenIds


class SequenceClassification(base.LogitScore):
    """Skywork-Reward-V2 and its kind: `…ForSequenceClassification` with one label.

    The chat template writes the text, with the answer as the assistant's turn. As in transformers,
    the logit is read at the last token that is not padding, even where the template's last token,
    such as `<|eot_id|>` of Llama 3, is also the padding token.

    The logit is a Bradley-Terry reward: only differences between answers to one problem mean
    something. The score is its sigmoid, which keeps the order but is no probability of being right.
    Ref: the model card of Skywork/Skywork-Reward-V2-Qwen3-8B; arXiv 2507.01352.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = base.PrmTokenizer(path)
        self._system: str | None = options.get("system_prompt")
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        if config.num_labels != 1:
            raise CheckpointError(
                f"{path}: the classification head has {config.num_labels} labels; a reward model "
                "has one",
                hint="choose a reward model, such as Skywork/Skywork-Reward-V2-Qwen3-4B",
            )
        self._padding: int | None = config.pad_token_id
        self.engine_extra = base.build_engine_extra()

    def encode_answer(self, problem: Problem, answer: str) -> tuple[TokenIds, int]:
        turns = [*base.list_turns(problem, self._system), {"role": "assistant", "content": answer}]
        ids = self._tokenizer.encode_rendered(self._tokenizer.render_turns(turns))
        last = len(ids)
        while last > 1 and ids[last - 1] == self._padding:
            last -= 1
        return ids, last


_FIELD = re.compile(r"\{(problem|answer)\}")
_PROBE = Problem.from_text("How many?")


@dataclass(frozen=True, slots=True, kw_only=True)
class YesNoVariant:
    prompt: str
    """The text with `{problem}` and `{answer}`."""
    reply: str = ""
    """How the assistant's turn begins. The label follows it."""
    is_chat: bool = True
    """Whether the prompt is a user's turn of the chat template. Otherwise it is plain text."""


VARIANTS: Mapping[str, YesNoVariant] = {
    "gorm": YesNoVariant(
        prompt=(
            "You are a math teacher. Grade the solution, verifying correctness step by step.\n"
            "At the end of Solution verification, when you give your final grade, write it in "
            'the form "Verification: Is the answer correct (Yes/No)? X", where X is either Yes '
            "or No.\n\n[Math Problem]\n{problem}\n\n[Solution]\n{answer}\n"
        ),
        reply="Verification: Is the answer correct (Yes/No)?",
    ),
    "genrm": YesNoVariant(
        prompt="Q: {problem}\nA: {answer}\nVerification: Is the answer correct (Yes/No)?",
        is_chat=False,
    ),
    "question": YesNoVariant(
        prompt="Problem: {problem}\n\nSolution: {answer}\n\nIs the answer correct (Yes/No)?"
    ),
}


class YesNoVerifier(base.LogitScore):
    """A causal model that answers "Is the answer correct (Yes/No)?" in one token.

    Variants: `gorm` is the prompt of the generative outcome reward models. They are trained to
    reason before the line "Verification: …", with which their reply begins here. What that costs
    was not measured, since no published checkpoint was at hand. `genrm` is GenRM's direct form in
    plain text. `question` asks an instruction-tuned model in a user's turn. The option `prompt`
    replaces the variant's text.

    A label follows a space, unless the text before it ends with white space. A thinking model is
    told not to think (`enable_thinking`), since it has to answer at once.
    Ref: arXiv 2510.00492 and db-Lee/Multi-RM, generative/prompt_formats.py (gorm);
    arXiv 2408.15240 §3.1 (genrm).
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._variant = base.choose_variant(VARIANTS, options, "question", "yes_no")
        self._tokenizer = base.PrmTokenizer(path, needs_template=self._variant.is_chat)
        self._system: str | None = options.get("system_prompt")
        self._prompt: str = options.get("prompt", self._variant.prompt)
        if {m[1] for m in _FIELD.finditer(self._prompt)} != {"problem", "answer"}:
            raise ConfigError(
                "the prompt of a yes_no verifier must hold {problem} and {answer}", param="prompt"
            )
        self._prompt = self._tokenizer.spell(self._prompt)
        self.engine_extra = build_two_label_extra(
            path,
            self._tokenizer,
            good=self._find_label(path, options.get("good_token", "Yes")),
            bad=self._find_label(path, options.get("bad_token", "No")),
        )

    def encode_answer(self, problem: Problem, answer: str) -> tuple[TokenIds, int]:
        ids = self._encode(self._render(problem, answer))
        return ids, len(ids)

    def _render(self, problem: Problem, answer: str) -> str:
        values = {"problem": base.render_plain_text(problem), "answer": answer.strip()}
        prompt = _FIELD.sub(lambda match: values[match[1]], self._prompt)
        if not self._variant.is_chat:
            return prompt
        turns = base.list_turns(Problem.from_text(prompt), self._system)
        return self._tokenizer.render_turns(turns, reply=self._variant.reply)

    def _encode(self, text: str) -> TokenIds:
        if self._variant.is_chat:
            return self._tokenizer.encode_rendered(text)
        return self._tokenizer.encode_beginning(text)

    def _find_label(self, path: Path, label: str) -> int:
        """Find the id of `label` after the prompt. Raises CheckpointError unless that is one."""
        text = self._render(_PROBE, "4")
        before = self._encode(text)
        after = self._encode(text + ("" if text[-1].isspace() else " ") + label)
        if after[: len(before)] != before:
            raise CheckpointError(
                f"{path}: the tokenizer merges {label!r} with the end of the prompt",
                hint="end the prompt with other text, such as a question mark",
            )
        return self._tokenizer.require_single_id(after[len(before) :], label)
