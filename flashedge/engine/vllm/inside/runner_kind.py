"""Which of vLLM's two model runners an engine has.

The first one prepares each step on the host. Only it computes deterministic requests
(`determinism.runner`). The second one keeps the state of its requests on the card, so that the host
works less in a step of many sequences. Our patches of one have no effect on the other, so an engine
with the wrong runner does not start. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashedge.engine.vllm.inside.keys import SECOND_RUNNER, read_config
from flashedge.errors import EngineError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


MODULES = {"first": "vllm.v1.worker.gpu_model_runner", "second": "vllm.v1.worker.gpu.model_runner"}
"""Where vLLM defines the class of each kind of runner. A CPU's runners derive from these."""


def uses_second_runner(self: VllmConfig) -> bool:
    """Stand in for vLLM's property, which decides for all engines by one environment variable."""
    return bool(read_config(self).get(SECOND_RUNNER))


def find_kind(runner: Any) -> str | None:
    """Returns a key of `MODULES`, or None for a runner of neither kind."""
    modules = {base.__module__ for base in type(runner).__mro__}
    return next((kind for kind, module in MODULES.items() if module in modules), None)


def check_runner(runner: Any, config: VllmConfig) -> None:
    """Raises EngineError if the runner is not of the kind that `config` asks for."""
    asked = "second" if uses_second_runner(config) else "first"
    if find_kind(runner) != asked:
        raise EngineError(
            f"vLLM computes with {type(runner).__module__}.{type(runner).__qualname__}, and not"
            f" with its {asked} model runner, for which FlashEdge has prepared the engine"
        )
