"""Process reward models, one file a family: how a path is written for it, how a score is read."""

from __future__ import annotations

from flashedge.engine.vllm.prm.base import PrmFamily, PrmFormat
from flashedge.engine.vllm.prm.qwen import QwenPrm
from flashedge.engine.vllm.prm.rlhflow import RlhflowPrm
from flashedge.engine.vllm.prm.skywork import SkyworkPrm
from flashedge.engine.vllm.prm.step_tag import StepTagPrm
from flashedge.errors import ConfigError

FAMILIES: dict[str, PrmFamily] = {
    "qwen_prm": QwenPrm,
    "skywork": SkyworkPrm,
    "step_tag": StepTagPrm,
    "rlhflow": RlhflowPrm,
}


def family(name: str) -> PrmFamily:
    """Raises ConfigError for an unknown family, naming the known ones."""
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"unknown verifier family {name!r}", hint=f"known: {known}") from None


__all__ = ["FAMILIES", "PrmFamily", "PrmFormat", "family"]
