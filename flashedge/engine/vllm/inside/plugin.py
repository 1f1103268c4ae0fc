"""Our vLLM plugin, which registers the model class that vLLM lacks.

vLLM finds it through the entry point `vllm.general_plugins` (pyproject.toml) and calls it in each
of its processes. An engine with several cards starts its workers after that. Our patches of the
core change how workers start, so the plugin applies them first.
"""

import multiprocessing

from flashedge.engine.vllm.inside.keys import STAGES_PIPE

SKYWORK = "Qwen2ForPrmModel"
"""The architecture in the config.json of Skywork's reward models."""


def register() -> None:
    """Register the class, and patch an engine's core. A second call changes nothing."""
    import torch
    from vllm import ModelRegistry

    # vLLM's attention uses the matrix tiles (AMX) of CPUs that have them. A process that has not
    # asked Linux for them, as torch does here, is killed at its first tile.
    torch.cpu._init_amx()  # type: ignore[no-untyped-call]
    if SKYWORK not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(
            SKYWORK, "flashedge.engine.vllm.inside.skywork_model:SkyworkForPrm"
        )
    if hasattr(multiprocessing.current_process(), STAGES_PIPE):  # a process that we started
        from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
        from flashedge.engine.vllm.inside.step_record import get_step_record

        apply_patches(ProcessKind.CORE)
        get_step_record()  # from here on an error that ends the start is written into it
