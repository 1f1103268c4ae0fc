"""ReasonFlux-PRM-7B: judges the steps of a long chain of thought and of the answer behind it."""

from __future__ import annotations

from flashedge.engine.vllm.prm.qwen import QwenPrm


class ReasonfluxPrm(QwenPrm):
    """chat(problem), then step <extra_0> step <extra_0> …; the score is softmax(logits)[1].

    The form and the head are those of Qwen2.5-Math-PRM. What differs is what the model was trained
    on: the steps of a trajectory (`<think>` … `</think>`, split at blank lines) before those of the
    final answer. So there is no system prompt beyond the chat template's own.

    The paper also rates the whole trajectory, by one separator behind all of it. That is not done
    here: a path's score is the aggregate of its steps' scores.

    Not checked, since the published files were not at hand: that config.json names the architecture
    Qwen2ForProcessRewardModel, which vLLM needs. ReasonFlux-PRM-1.5B is of another kind: one score
    for problem and answer, from a head in a file `reward_head.pt` that vLLM does not read.
    Ref: arXiv 2506.18896; Gen-Verse/ReasonFlux, ReasonFlux_PRM/README.md and utils/rm_utils.py.
    """
