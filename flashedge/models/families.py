"""The families of verifiers: which checkpoints belong to each, and what their scores are about.

How a family writes a path as tokens stands in `engine/vllm/prm/`, one file for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flashedge.types import Judges

_CAUSAL = ("MistralForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierFamily:
    """What is known of a family without loading an engine."""

    architectures: tuple[str, ...]
    """The architectures in config.json of its checkpoints."""

    judges: Judges = "steps"
    """"steps": a process reward model. "answers": an outcome reward model."""

    scores_probability: bool = True
    """Whether a score says how likely the step or the answer is right. Otherwise it only ranks."""

    scores_pairs: bool = False
    """Whether vLLM's own /score works: for a classifier with one label, of any two texts."""


VERIFIER_FAMILIES: Mapping[str, VerifierFamily] = MappingProxyType(
    {
        "qwen_prm": VerifierFamily(architectures=("Qwen2ForProcessRewardModel",)),
        "reasonflux": VerifierFamily(architectures=("Qwen2ForProcessRewardModel",)),
        "skywork": VerifierFamily(
            architectures=("Qwen2ForPrmModel", "Qwen2ForCausalLM", "Qwen2ForRewardModel")
        ),
        "step_tag": VerifierFamily(architectures=_CAUSAL),
        "rlhflow": VerifierFamily(architectures=_CAUSAL),
        "sequence_classification": VerifierFamily(
            architectures=(
                "Qwen3ForSequenceClassification",
                "Qwen2ForSequenceClassification",
                "LlamaForSequenceClassification",
                "MistralForSequenceClassification",
            ),
            judges="answers",
            scores_probability=False,
            scores_pairs=True,
        ),
        "yes_no": VerifierFamily(architectures=_CAUSAL, judges="answers"),
    }
)
