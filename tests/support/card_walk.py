# ruff: noqa: E402
"""What is decided about an engine before its first kernel runs, on a faked card (`fake_cuda`).

Importing this module fakes the card for good: `walk` runs in a process of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.fake_cuda import count_peak, forget_card, install, register_kernels, use_nvml
from tests.support.fake_nvml import CARDS, fake_card, fake_cards

install()
register_kernels()

import numpy as np
import torch
from typer.testing import CliRunner
from vllm.config import PoolerConfig, set_current_vllm_config
from vllm.config import vllm as vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from flashedge.cli.main import app
from flashedge.config import load_config
from flashedge.engine.layout import find_layout
from flashedge.engine.memory_plan import resolve_memory
from flashedge.engine.vllm.engine_options import build_options, place_engine
from flashedge.engine.vllm.inside.determinism import runner
from flashedge.engine.vllm.inside.determinism.windows import ReplayPass
from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches
from flashedge.engine.vllm.process.start import ProcessSetup, set_up, show_cards
from flashedge.engine.vllm.shape_probe import list_shapes
from flashedge.errors import FlashEdgeError
from flashedge.models.registry import find_pair
from flashedge.runtime.build import build

DTYPES = ("float32", "bfloat16", "float16")
ROLES = {"generator": "Qwen2ForCausalLM", "verifier": "Qwen2ForProcessRewardModel"}
SMALL = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}
"""What a model of 1.5B changes of the config of one of 7B."""
PAIR = "math-1.5b+skywork-1.5b"


def walk(folder: str) -> dict[str, Any]:
    models = Path(folder)
    found: dict[str, Any] = {"cards": {card: walk_card(card, models) for card in CARDS}}
    install()
    forget_card()
    return {
        **found,
        "forward": {"7B": count_forward(models / "7B"), "1.5B": count_forward(models, **SMALL)},
        "passes": walk_passes(models),
        "layouts": {name: walk_layout(name, models) for name in LAYOUTS},
        "experimental": walk_experimental(models),
        "commands": walk_commands(),
    }


def _plan(card: str = "4090", **settings: object) -> tuple[Any, Any]:
    """The pair, and the configuration by which its engines start on a card."""
    given = load_config(settings)
    pair = find_pair(PAIR, given)
    return pair, resolve_memory(pair, given, fake_card(card))


def _build_options(
    role: str, dtype: str, config: Any, pair: Any, folder: Path, **changes: Any
) -> Any:
    """The options of an engine whose model of 7B has a config.json with these changes.
    `create_engine_config` reads nothing else."""
    path = folder / role
    path.mkdir(parents=True, exist_ok=True)
    model = {
        "architectures": [ROLES[role]],
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "num_labels": 2,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "vocab_size": 152_064,
        **changes,
    }
    (path / "config.json").write_text(json.dumps(model))
    spec, kv_bytes = getattr(pair, role), getattr(config.kv_bytes, role)
    options = build_options(
        role, replace(spec, dtype=dtype), path, kv_bytes, None, config, on_card=True
    )
    extra: dict[str, Any] = {"skip_tokenizer_init": True}
    if role == "generator":
        extra["logits_processors"] = ["flashedge.engine.vllm.inside.noise:PositionNoise"]
    else:
        pooler = PoolerConfig(task="token_classify", tok_pooling_type="ALL")
        extra |= {"runner": "pooling", "pooler_config": pooler}
    return replace(options, extra=extra)


def _build_config(*args: Any, **changes: Any) -> Any:
    return _build_options(*args, **changes).build_args().create_engine_config()


def walk_card(card: str, folder: Path) -> dict[str, Any]:
    forget_card()
    pair, config = _plan(card)
    install(card)
    return {
        "kv_bytes": [config.kv_bytes.generator, config.kv_bytes.verifier],
        "engines": {
            f"{role} {dtype}": _describe(role, dtype, config, pair, folder)
            for role in ROLES
            for dtype in DTYPES
        },
    }


LAYOUTS = {
    "one each": (("4090", "3060"), "0", "1"),
    "both on two": (("4090", "4090"), "0,1", "0,1"),
    "two and one": (("3060", "3060", "4090"), "0,1", "2"),
}


def walk_layout(name: str, folder: Path) -> dict[str, Any]:
    cards, generator, verifier = LAYOUTS[name]
    nvml = fake_cards(*cards)
    use_nvml(nvml)
    forget_card()
    given = load_config({"devices": (generator, verifier)})
    pair = find_pair(PAIR, given)
    config, layout = resolve_memory(pair, given, nvml), find_layout(given, nvml)
    found: dict[str, Any] = {}
    for role in ROLES:
        options = place_engine(_build_options(role, "bfloat16", config, pair, folder), layout, role)
        with set_up(ProcessSetup(cards=options.visible_cards)), show_cards():
            own = options.build_args().create_engine_config()
            find_card = current_platform.device_id_to_physical_device_id
            seen = [find_card(rank) for rank in range(options.cards)]
        parallel = own.parallel_config
        found[role] = {
            "cards": seen,  # the driver's numbers of those that vLLM takes for its workers
            "tensor_parallel": parallel.tensor_parallel_size,
            "executor": str(parallel.distributed_executor_backend).rpartition(".")[2],
            "kv_mib": own.cache_config.kv_cache_memory_bytes >> 20,
            "kv_heads": own.model_config.get_num_kv_heads(parallel),
            "moves": layout.moves_memory,
        }
    return found


def _describe(role: str, dtype: str, config: Any, pair: Any, folder: Path) -> dict[str, Any]:
    own = _build_config(role, dtype, config, pair, folder)
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


def count_forward(folder: Path, **changes: int) -> int:
    """The peak bytes at the batch limit, on tensors without data. The kernels only say what they
    return."""
    pair, config = _plan()
    return count_peak(_build_config("verifier", "bfloat16", config, pair, folder, **changes))


def walk_experimental(folder: Path) -> dict[str, Any]:
    use_nvml(fake_card("4090"))
    forget_card()
    apply_patches(ProcessKind.DAEMON)
    vllm_config.HAS_TRITON = True  # Triton finds no driver on a faked card
    pair, config = _plan(features="second_runner=on,verifier_graphs=on")
    return {role: _describe(role, "bfloat16", config, pair, folder) for role in ROLES}


def walk_passes(folder: Path) -> dict[str, Any]:
    pair, config = _plan()
    own = _build_config("generator", "bfloat16", config, pair, folder)
    spec = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=128, dtype=torch.bfloat16)
    builder = FlashAttentionMetadataBuilder(spec, [], own, torch.device("cpu"))
    metadata = CommonAttentionMetadata(
        query_start_loc=torch.tensor([0, 64], dtype=torch.int32),
        query_start_loc_cpu=torch.tensor([0, 64], dtype=torch.int32),
        seq_lens=torch.tensor([640], dtype=torch.int32),
        num_reqs=1,
        num_actual_tokens=64,
        max_query_len=64,
        max_seq_len=640,
        block_table_tensor=torch.zeros(1, 64, dtype=torch.int32),
        slot_mapping=torch.zeros(64, dtype=torch.int64),
    )
    shared = builder.build(0, metadata).max_num_splits
    with runner.force_one_split():
        of_pass = builder.build(0, metadata).max_num_splits
    sequences = own.scheduler_config.max_num_seqs
    return {
        "splits": [shared, of_pass, builder.build(0, metadata).max_num_splits],
        "rows": [shape.rows for shape in list_shapes(sequences, on_cpu=False)],
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
        mode, batch, *_ = runner.determine_padding(
            fake,
            num_tokens=5,
            num_reqs=5,
            num_scheduled_tokens_np=np.ones(5, dtype=np.int32),
            max_num_scheduled_tokens=1,
        )
        found[name] = [mode.name, batch.num_tokens]
    return found


def walk_commands() -> dict[str, Any]:
    use_nvml(fake_card("4090"))
    forget_card()
    found: dict[str, Any] = {}
    for name, command in {
        "fit": f"doctor --fit {PAIR}",
        "too large": "doctor --fit math-7b+prm-7b",
        "doctor": "doctor --json",
        "show": f"models show {PAIR}",
    }.items():
        done = CliRunner().invoke(app, command)
        found[name] = {"code": done.exit_code, "out": done.output}
    found["up"] = [
        {
            "kv_fixed": engine.options.kv_fixed,
            "sequences": engine.options.max_num_seqs,
            "graphs": list(engine.options.graph_sizes),
        }
        for engine in _build_engines()
    ]
    found["refused"] = _refuse({"pair": "math-7b+prm-7b"})
    use_nvml(fake_cards("4090", "3060", "3060"))
    forget_card()
    apart = _build_engines({"devices": "1,0", "features": "kv_split=on,mapped_kv=on"})  # bundled
    found["apart"] = [
        {
            "visible": engine.options.visible_cards,
            "kv_mib": engine.options.kv_bytes >> 20,
            "fixed": engine.options.kv_fixed,
            "health": [engine.health().cards, engine.health().kv_memory],
        }
        for engine in apart
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
