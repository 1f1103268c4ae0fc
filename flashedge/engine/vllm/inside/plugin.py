"""vLLM plugin: registers the model classes that vLLM lacks.

vLLM finds it through the entry point `vllm.general_plugins` (pyproject.toml) and calls it in each
of its processes, a freshly spawned one too. It names the class, which is imported on first use.
"""

from __future__ import annotations

SKYWORK = "Qwen2ForPrmModel"


def register() -> None:
    """Register our classes with this process's vLLM. May be called again."""
    from vllm import ModelRegistry

    if SKYWORK not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(
            SKYWORK, "flashedge.engine.vllm.inside.skywork_model:SkyworkForPrm"
        )
