"""Every name of vLLM and its libraries that FlashEdge adds or replaces in a process, in one table.

vLLM's interfaces (scheduler class, worker extension, logits processor, model registry) do not reach
these names. Each process applies its part of the table before vLLM uses the names: the daemon
before it starts an engine, an engine's core when vLLM calls our plugin (`plugin`) or imports our
scheduler, its workers when vLLM imports the worker extension (`kv.worker`). Single objects that we
change are not here (`scheduler`, `serving.conversation`, `process.live_process`).
scripts/vllm_seams has all of them. Checked with vLLM 0.32.0.
"""

import pkgutil
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flashedge.engine.platform import CHECKED_MINOR, find_vllm
from flashedge.errors import ConfigError


class ProcessKind(StrEnum):
    """An engine on one card is one process, which is both core and worker. An engine that is spread
    over several cards has a worker process for each of them."""

    DAEMON = "daemon"
    CORE = "core"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    process: ProcessKind
    target: str
    """The name in vLLM, as "module:attribute path"."""
    replacement: str
    reason: str
    adds: bool = False
    """Whether vLLM has nothing under this name."""


def _patch(
    process: ProcessKind, target: str, replacement: str, reason: str, *, adds: bool = False
) -> Patch:
    ours = f"flashedge.engine.vllm.{replacement}"
    return Patch(process=process, target=target, replacement=ours, reason=reason, adds=adds)


_DAEMON, _CORE, _WORKER = ProcessKind.DAEMON, ProcessKind.CORE, ProcessKind.WORKER
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"

PATCHES = (
    _patch(_DAEMON, "vllm.v1.engine.utils:get_mp_context", "process.start:get_mp_context",
           "Engine processes are forked from a server that has imported vLLM already."),
    _patch(_DAEMON, "vllm.outputs:RequestOutput.add", "inside.outputs:join_outputs",
           "Outputs that vLLM joins would lose the log-probabilities of the earlier one."),
    _patch(_DAEMON, "vllm.parser.engine.incremental_lexer:IncrementalLexer.feed",
           "serving.twin_parser:feed_in_pieces",
           "Parsing an answer with many markers took time that grew with its length squared."),
    _patch(_DAEMON, "vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request",
           "serving.stop_strings:build_detokenizer",
           "A stop string in a model's thinking ended the answer before it began."),
    *(_patch(process, "vllm.config.vllm:VllmConfig.use_v2_model_runner",
             "inside.runner_kind:uses_second_runner",
             "The generator may have vLLM's second model runner, the verifier has the first.")
      for process in ProcessKind),
    *(_patch(_WORKER, f"vllm.v1.worker.{module}:allocate_kv_cache", "inside.kv.tensor:allocate",
             "Two engines share one device: KV blocks get memory only within the quota.")
      for module in ("gpu_model_runner", "gpu.attn_utils")),
    _patch(_WORKER, "vllm.v1.sample.sampler:batched_count_greater_than",
           "inside.sampling.on_cpu:count_at_least",
           "Nobody reads a token's rank. Counting it took a quarter of a search's step on a CPU."),
    *(_patch(_WORKER, f"{_RUNNER}.{name}", f"inside.determinism.runner:{replacement}",
             "Deterministic requests are computed in passes of one shape.")
      for name, replacement in (
          ("_prepare_inputs", "prepare_inputs"),
          ("_determine_batch_execution_and_padding", "determine_padding"),
          ("_build_attention_metadata", "build_attention_metadata"),
          ("_sample", "sample"),
          ("_pool", "pool"),
      )),
    _patch(_WORKER, f"{_RUNNER}.sample_tokens", "inside.determinism.runner:sample_tokens",
           "A pass draws several tokens of a request, but a placeholder stands for one."),
    _patch(_CORE, "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
           "inside.determinism.passes:step_with_batch_queue",
           "A pass of deterministic requests begins where the step before it ended."),
    _patch(_WORKER,
           "vllm.model_executor.layers.pooler.tokwise.heads:TokenClassifierPoolerHead"
           ".forward_chunk",
           "inside.determinism.runner:forward_chunk",
           "Scores of deterministic searches need a head of one shape."),
    _patch(_WORKER, "vllm.v1.worker.gpu.model_runner:init_speculator",
           "inside.table_speculator:init_speculator",
           "Tokens are drafted from the text of all paths of a program, and by the noise."),
    _patch(_WORKER, "vllm.v1.worker.gpu.model_runner:GPUModelRunner.add_requests",
           "inside.table_speculator:add_requests",
           "The runner learns from which program's text a request is drafted."),
    _patch(_WORKER, "tqdm.std:tqdm.display", "inside.start_stages:report_bar",
           "vLLM's progress bars are shown as the engine's stage, and do not fill a log."),
    _patch(_CORE, "vllm.v1.executor.multiproc_executor:get_mp_context",
           "inside.start_stages:get_mp_context",
           "A worker in a process of its own reports its stages, as an engine on one card does."),
    _patch(_CORE, "vllm.v1.structured_output:StructuredOutputManager._create_grammar",
           "inside.guided_steps:create_grammar",
           "A search generates a path step by step, and its grammar has to go on with it."),
    _patch(_CORE, "vllm.v1.engine.core:EngineCore.flashedge_call", "inside.calls:call",
           "The daemon calls our functions between two engine steps.", adds=True),
)  # fmt: skip


def apply_patches(process: ProcessKind, patches: tuple[Patch, ...] = PATCHES) -> None:
    """Apply the patches of this kind of process. A second call changes nothing. Raises ConfigError
    if vLLM lacks a name to be replaced, or has one to be added."""
    for patch in (each for each in patches if each.process is process):
        owner, name = find_owner(patch)
        ours = pkgutil.resolve_name(patch.replacement)
        current = getattr(owner, name, None)
        if ours in (current, getattr(current, "fget", None)):
            continue
        if patch.adds and current is not None:
            raise _make_error(patch, "already has")
        if not patch.adds and current is None:
            raise _make_error(patch, "does not have")
        setattr(owner, name, property(ours) if isinstance(current, property) else ours)


def find_owner(patch: Patch) -> tuple[Any, str]:
    """The module or class that a patch changes, and the name it sets there. Raises ConfigError."""
    module, _, path = patch.target.partition(":")
    *parents, name = path.split(".")
    try:
        return pkgutil.resolve_name(f"{module}:{'.'.join(parents)}"), name
    except (ImportError, AttributeError) as error:
        raise _make_error(patch, "does not have") from error


def _make_error(patch: Patch, problem: str) -> ConfigError:
    distribution, version = find_vllm()
    return ConfigError(
        f"{distribution} {version} {problem} {patch.target}: it is another vLLM than the one that "
        f"FlashEdge was checked with ({CHECKED_MINOR})",
        hint="run scripts/setup.sh to install the checked version",
    )
