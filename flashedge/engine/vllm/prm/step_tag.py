"""Causal models that predict "+" or "-" after each step: at a tag (Math-Shepherd and others), or
as the assistant's answer in a conversation (RLHFlow)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.engine.vllm.prm import base
from flashedge.errors import CheckpointError
from flashedge.types import Problem, TokenIds

_NUMBERED = re.compile(r"Step \d+\s*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTagVariant:
    tag: str
    """The token after a step, with the space before it."""
    good: str
    """The label of a good step, with the space before it, if the variant has one there."""
    bad: str
    """The label of a bad step, likewise."""
    before_steps: str
    """The text between the problem and the first step."""
    between_steps: str
    """The text between a tag and the next step."""
    is_numbered: bool = False
    """Whether a step has to be one line that begins with "Step k:"."""


VARIANTS: Mapping[str, StepTagVariant] = {
    "math_shepherd": StepTagVariant(
        tag=" ки", good=" +", bad=" -", before_steps=" ", between_steps="\n", is_numbered=True
    ),
    "openr": StepTagVariant(
        tag=" \n\n\n\n\n", good=" +", bad=" -", before_steps=" ", between_steps=" "
    ),
    "versa": StepTagVariant(
        tag=" \n\n\n\n", good="+", bad="-", before_steps=" \n\n", between_steps=""
    ),
}


class StepTagPrm(base.LogitScore):
    r"""bos problem, then step tag step tag …; the score is P("+") against P("-") at the tag.

    Variants (`variant` in models.toml):

    - `math_shepherd`: " Step 1: … ки\nStep 2: … ки". Tag and labels follow a space, as in the
      training data ("… 18 ки" was trained to become "… 18 +"). In a SentencePiece vocabulary they
      are "▁ки", "▁+", "▁-" (12902, 648, 387). A step's own newlines become spaces, because a
      newline begins the next step. "Step k:" is put before a step that does not begin with it.
    - `openr`: five newlines as the tag (Math-psa and other models of OpenR's scripts, with
      the adapter merged into the base model). Steps follow the tag after a space, without a number.
    - `versa`: " \n\n" after the problem, " \n\n\n\n" as the tag, labels without a space
      (Llama-PRM800K, VersaPRM and Multi-RM's dPRM, adapters merged).

    `step_token`, `good_token` and `bad_token` replace a variant's. They get a space in front if the
    variant's token has one. `score_at = "before_tag"` reads the score one token earlier, for models
    that were trained to predict the label in the tag's place.

    The tags and labels of these models are ordinary words ("ки", "+"), so a step may hold one. The
    model then sees another tag, but scores are read at ours only.
    Ref: the model card of peiyi9979/math-shepherd-mistral-7b-prm; arXiv:2312.08935;
    openreasoner/openr, prm/code/finetune_qwen.py; the model card of UW-Madison-Lee-Lab/VersaPRM;
    db-Lee/Multi-RM, discriminative/get_reward.py.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        own = (options.get("step_token", "").strip(),)
        self._tokenizer = base.PrmTokenizer(path, own, needs_template=False)
        variant = base.choose_variant(VARIANTS, options, "math_shepherd", "step_tag")
        self._variant = variant
        self._reads_tag = options.get("score_at", "tag") == "tag"
        self._tag = self._find_token(options.get("step_token"), variant.tag)
        good = self._find_token(options.get("good_token"), variant.good)
        bad = self._find_token(options.get("bad_token"), variant.bad)
        self.engine_extra = build_two_label_extra(path, self._tokenizer, good=good, bad=bad)

    def _find_token(self, given: str | None, usual: str) -> int:
        """Find the id of the token that the user has given, or of the variant's."""
        text = usual if given is None else given
        if usual[0] == " " and not text[:1].isspace():
            text = f" {text}"
        encode = self._tokenizer.encode_continuation if text[:1].isspace() else self._encode_bare
        return self._tokenizer.require_single_id(encode(self._tokenizer.spell(text)), text)

    def _encode_bare(self, text: str) -> TokenIds:
        """Encode text that follows a newline, without the space that SentencePiece would add."""
        newline = self._tokenizer.encode_continuation("\n")
        return self._tokenizer.encode_continuation("\n" + text)[len(newline) :]

    def encode_problem(self, problem: Problem) -> TokenIds:
        return self._tokenizer.encode_beginning(base.render_plain_text(problem))

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        variant, step = self._variant, text.strip()
        if variant.is_numbered:
            step = " ".join(part.strip() for part in step.splitlines() if part.strip())
            if not _NUMBERED.match(step):
                step = f"Step {index + 1}: {step}".rstrip()
        lead = variant.between_steps if index else variant.before_steps
        encode = self._tokenizer.encode_continuation if lead else self._encode_bare
        ids = (*encode(lead + step), self._tag)
        return ids, len(ids) if self._reads_tag else max(1, len(ids) - 1)


def build_two_label_extra(
    path: Path, tokenizer: base.PrmTokenizer, *, good: int, bad: int
) -> Mapping[str, Any]:
    """Build AsyncEngineArgs that make a causal checkpoint return logit(good) - logit(bad), whose
    sigmoid is the softmax over the two.

    vLLM converts the head: score.weight = lm_head[good] - lm_head[bad] in fp32. It takes the labels
    as the vocabulary spells them. Raises CheckpointError if the checkpoint is not a causal model,
    or a label's spelling is that of another token.
    """
    named = json.loads((path / "config.json").read_text(encoding="utf-8")).get("architectures")
    causal = next((a for a in named or () if a.endswith("ForCausalLM")), None)
    if causal is None:
        raise CheckpointError(f"{path} is no causal language model: its architecture is {named}")
    labels = tokenizer.hf.convert_ids_to_tokens([bad, good])
    if tokenizer.hf.convert_tokens_to_ids(labels) != [bad, good]:
        raise CheckpointError(f"{path}: the label tokens {labels} are not unique in the vocabulary")
    overrides = {
        "architectures": [causal.replace("ForCausalLM", "ForSequenceClassification")],
        "classifier_from_token": labels,
        "method": "from_2_way_softmax",
        "num_labels": 1,
    }
    return base.build_engine_extra(tokenizer_mode="hf", hf_overrides=overrides)


_PROBLEM, _STEP = "the-problem-stands-here", "the-step-stands-here"


class RlhflowPrm(base.LogitScore):
    """user: problem step 1, assistant: +, user: step 2, assistant: +, …

    The score is P("+") against P("-") at the last token before the assistant's answer. The chat
    template gives the text around problem and steps: a path is `head` problem step `ask` `between`
    step `ask` …, where `between` begins with the answer "+". The last step has no answer, since
    nothing after a scored token changes its score.
    Ref: RLHFlow/RLHF-Reward-Modeling, math-rm/prm_evaluate.py (its "-3 position").
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer = base.PrmTokenizer(path)
        good, bad = options.get("good_token", "+"), options.get("bad_token", "-")
        self.engine_extra = build_two_label_extra(
            path,
            tokenizer,
            good=tokenizer.require_single_id(tokenizer.encode(good), good),
            bad=tokenizer.require_single_id(tokenizer.encode(bad), bad),
        )
        system = options.get("system_prompt")
        self._head, ask, between = map(
            tokenizer.spell, _read_template(path, tokenizer.hf, good, system)
        )
        self._ask = tokenizer.encode(ask)
        self._between = tokenizer.encode(between)

    def encode_problem(self, problem: Problem) -> TokenIds:
        return self._tokenizer.encode(self._head + base.render_plain_text(problem))

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        step = text.strip()
        if index:
            ids = (*self._between, *self._tokenizer.encode(step), *self._ask)
        else:
            ids = (*self._tokenizer.encode_continuation(f" {step}"), *self._ask)
        return ids, len(ids)


def _read_template(path: Path, hf: Any, good: str, system: str | None) -> tuple[str, str, str]:
    """Split a rendered conversation into (head, ask, between) of `RlhflowPrm`. Raises
    CheckpointError if the template has another form."""
    turns = base.list_turns(Problem.from_text(_PROBLEM), system)
    turns += [{"role": "assistant", "content": good}, {"role": "user", "content": _STEP}]
    text = hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    head, has_problem, rest = text.partition(_PROBLEM)
    middle, has_step, ask = rest.partition(_STEP)
    if not (has_problem and has_step and ask and middle.startswith(ask + good)):
        raise CheckpointError(
            f"{path}: the chat template leaves out the problem or a step, or does not put an "
            "answer right after the generation prompt",
            hint="the checkpoint is not of family rlhflow, or its template is another model's",
        )
    return head, ask, middle.removeprefix(ask)
