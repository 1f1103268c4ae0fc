"""The families of reward models: how a path is encoded and how a score is read. What is known of a
family without an engine stands in `flashedge/models/specs.py`."""

from flashedge.engine.vllm.prm.answers import SequenceClassification, YesNoVerifier
from flashedge.engine.vllm.prm.base import FormatBuilder
from flashedge.engine.vllm.prm.qwen import QwenPrm, ReasonfluxPrm, SkyworkPrm
from flashedge.engine.vllm.prm.step_tag import RlhflowPrm, StepTagPrm
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
