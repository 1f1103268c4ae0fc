"""vLLM plugin: model classes of ours that vLLM has not.

Found through the entry point `vllm.general_plugins` (pyproject.toml), so that every process of
vLLM knows them, a freshly spawned one too. Light: the class is imported when it is needed.
"""

from __future__ import annotations

SKYWORK = "Qwen2ForPrmModel"


def register() -> None:
    """Tell this process's vLLM about our classes. May be called again."""
    from vllm import ModelRegistry

    if SKYWORK not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(
            SKYWORK, "flashedge.engine.vllm.inside.skywork_model:SkyworkForPrm"
        )
