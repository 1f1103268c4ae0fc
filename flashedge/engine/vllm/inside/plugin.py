"""vLLM plugin: registers the model classes that vLLM lacks.

vLLM finds it through the entry point `vllm.general_plugins` (pyproject.toml) and calls it in each
of its processes. It is also the first code of ours that runs in an engine's core: an engine with
several cards starts its workers later, so what changes their start is put in place here.
"""

import multiprocessing

from flashedge.engine.vllm.inside.keys import STAGES_PIPE

SKYWORK = "Qwen2ForPrmModel"


def register() -> None:
    """May be called again."""
    import torch
    from vllm import ModelRegistry

    # vLLM's attention uses the matrix tiles (AMX) of CPUs that have them, but does not ask Linux
    # for them: the first tile would end the process.
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
