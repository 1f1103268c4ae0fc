"""PRMs with a head on Qwen2: Qwen2.5-Math-PRM, the bundled verifier and ReasonFlux with two classes
at a separator, Skywork with a value at each newline."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from flashedge.engine.vllm.inside.plugin import SKYWORK
from flashedge.engine.vllm.prm import base
from flashedge.types import Problem, TokenIds


class QwenPrm:
    """`Qwen2ForProcessRewardModel`: chat(problem), then step <extra_0> step <extra_0> …

    The score is softmax(logits)[1] at the separator. The end of the turn, as in the model card's
    example, is left out: nothing after a scored token changes its score. Ref: the model card of
    Qwen/Qwen2.5-Math-PRM-7B.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        token = options.get("step_token", "<extra_0>")
        self._tokenizer = tokenizer = base.PrmTokenizer(path, own=(token,))
        self._system: str | None = options.get("system_prompt")
        ids = tokenizer.encode(tokenizer.spell(token))
        self._separator = tokenizer.require_single_id(ids, token)
        self.engine_extra = base.build_engine_extra(use_activation=None)

    def encode_problem(self, problem: Problem) -> TokenIds:
        turns = base.list_turns(problem, self._system)
        return self._tokenizer.encode_chat(turns, add_generation_prompt=True)

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        ids = (*self._tokenizer.encode(text.strip()), self._separator)
        return ids, len(ids)

    def read_score(self, row: torch.Tensor) -> float:
        return float(row[1])


class ReasonfluxPrm(QwenPrm):
    """The form and head of Qwen2.5-Math-PRM. ReasonFlux-PRM-7B was trained on the steps of a
    trajectory (`<think>` … `</think>`, split at blank lines) before those of the final answer,
    without a system prompt beyond the chat template's own. The paper also rates the whole
    trajectory by one separator after it; here a path's score is the aggregate of its steps' scores.

    vLLM needs a config.json with the architecture Qwen2ForProcessRewardModel. Whether the published
    one names it was not checked. ReasonFlux-PRM-1.5B is of another kind: one score for problem and
    answer, from a head in a file `reward_head.pt` that vLLM does not read. Ref: arXiv 2506.18896;
    Gen-Verse/ReasonFlux, ReasonFlux_PRM/README.md and utils/rm_utils.py.
    """


class SkyworkPrm(base.LogitScore):
    r"""`Qwen2ForPrmModel`: bos problem \n, then line \n line \n …; score = sigmoid(value at \n).

    As in Skywork's own `prepare_input`, an answer is split at every newline, each line is encoded
    by itself, and the newline's id follows. A step of several lines has the score of its last
    line. Blank lines are left out: Skywork's code would score an empty line as a step of its own.
    Ref: SkyworkAI/skywork-o1-prm-inference, model_utils/io_utils.py.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        import flashedge.engine.vllm.inside.skywork_model  # noqa: F401 (registers itself)

        self._tokenizer = tokenizer = base.PrmTokenizer(path, needs_template=False)
        # Qwen's own tokenizers name no BOS token. Skywork's names this one.
        bos: str = tokenizer.hf.bos_token or "<|endoftext|>"
        self._bos = tokenizer.spell(bos)
        tokenizer.require_single_id(tokenizer.encode(self._bos), bos)
        self._newline = tokenizer.require_single_id(tokenizer.encode("\n"), "\n")
        self.engine_extra = base.build_engine_extra(hf_overrides={"architectures": [SKYWORK]})

    def encode_problem(self, problem: Problem) -> TokenIds:
        return self._tokenizer.encode(f"{self._bos}{base.render_plain_text(problem)}\n")

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        lines = [line for line in text.strip().split("\n") if line.strip()] or [""]
        parts = ((*self._tokenizer.encode(line), self._newline) for line in lines)
        ids = tuple(chain.from_iterable(parts))
        return ids, len(ids)
