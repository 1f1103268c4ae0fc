"""Skywork-o1-Open-PRM: plain text, a score at the newline after each line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashedge.engine.vllm.inside.plugin import SKYWORK
from flashedge.engine.vllm.prm.base import (
    LogitScore,
    PrmTokenizer,
    build_token_pooler,
    render_plain_text,
)
from flashedge.types import Problem, TokenIds


class SkyworkPrm(LogitScore):
    r"""`Qwen2ForPrmModel`: bos problem \n, then line \n line \n …; score = sigmoid(value at \n).

    Skywork's own `prepare_input` splits an answer at every newline, encodes each line by itself
    and puts the newline's id after it. A step can hold several lines. They are written in that same
    way, which gives the ids that the model was trained on, and the step's score is the one at its
    last line. Blank lines are left out: they separate steps, and Skywork's code would score an
    empty line as a step of its own.
    Ref: SkyworkAI/skywork-o1-prm-inference, model_utils/io_utils.py.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        import flashedge.engine.vllm.inside.skywork_model  # noqa: F401 (registers itself)

        self._tokenizer = tokenizer = PrmTokenizer(path)
        # Qwen's tokenizers name no BOS token. Skywork's does: this one.
        bos: str = tokenizer.hf.bos_token or "<|endoftext|>"
        self._bos = tokenizer.spell(bos)
        tokenizer.require_single_id(tokenizer.encode_plain(self._bos), bos)
        self._newline = tokenizer.require_single_id(tokenizer.encode_plain("\n"), "\n")
        self.engine_extra: Mapping[str, Any] = {
            "runner": "pooling",
            "hf_overrides": {"architectures": [SKYWORK]},
            "pooler_config": build_token_pooler(),
        }

    def encode_problem(self, problem: Problem) -> TokenIds:
        return self._tokenizer.encode_plain(f"{self._bos}{render_plain_text(problem)}\n")

    def encode_step(self, text: str, index: int) -> tuple[TokenIds, int]:
        lines = [line for line in text.strip().split("\n") if line.strip()] or [""]
        ids: list[int] = []
        for line in lines:
            ids += self._tokenizer.encode_plain(line)
            ids.append(self._newline)
        return tuple(ids), len(ids)
