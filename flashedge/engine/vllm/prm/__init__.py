"""The families of reward models, one file each: how a path is encoded and how a score is read.

What is known of a family without an engine (its architectures, and whether it judges steps or whole
answers) stands in `flashedge/models/specs.py`.
"""

from __future__ import annotations

from flashedge.engine.vllm.prm.base import AnswerFormat, FormatBuilder, PrmFormat
from flashedge.engine.vllm.prm.qwen import QwenPrm, ReasonfluxPrm
from flashedge.engine.vllm.prm.rlhflow import RlhflowPrm
from flashedge.engine.vllm.prm.sequence_classification import SequenceClassification
from flashedge.engine.vllm.prm.skywork import SkyworkPrm
from flashedge.engine.vllm.prm.step_tag import StepTagPrm
from flashedge.engine.vllm.prm.yes_no import YesNoVerifier
from flashedge.errors import ConfigError

FAMILIES: dict[str, FormatBuilder] = {
    "qwen_prm": QwenPrm,
    "reasonflux": ReasonfluxPrm,
    "skywork": SkyworkPrm,
    "step_tag": StepTagPrm,
    "rlhflow": RlhflowPrm,
    "sequence_classification": SequenceClassification,
    "yes_no": YesNoVerifier,
}


def find_family(name: str) -> FormatBuilder:
    """Raises ConfigError for an unknown family. Its hint names the known ones."""
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"unknown verifier family {name!r}", hint=f"known: {known}") from None


__all__ = ["FAMILIES", "AnswerFormat", "FormatBuilder", "PrmFormat", "find_family"]
