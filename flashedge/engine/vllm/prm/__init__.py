"""Process reward models, one file per family: how a path is encoded and how a score is read."""

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


def find_family(name: str) -> PrmFamily:
    """Raises ConfigError for an unknown family. Its hint names the known ones."""
    try:
        return FAMILIES[name]
    except KeyError:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"unknown verifier family {name!r}", hint=f"known: {known}") from None


__all__ = ["FAMILIES", "PrmFamily", "PrmFormat", "find_family"]
