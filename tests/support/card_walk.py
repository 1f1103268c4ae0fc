"""What is decided about an engine before its first kernel runs, on a faked card (`fake_cuda`).

These functions run in a process of their own and answer in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.fake_cuda import forget_card, install, use_nvml
from tests.support.fake_nvml import CARDS, fake_card, fake_cards

DTYPES = ("float32", "bfloat16", "float16")
ROLES = {"generator": "Qwen2ForCausalLM", "verifier": "Qwen2ForProcessRewardModel"}
WIDTHS = {"hidden_size": 3584, "intermediate_size": 18_944, "vocab_size": 152_064}
PAIR = "math-1.5b+skywork-1.5b"


def write_config(folder: Path, role: str, **changes: Any) -> Path:
    """A folder with the config.json of a model of 7B. `create_engine_config` reads nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [ROLES[role]],
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "num_labels": 2,
        **WIDTHS,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _plan(card: str = "4090", **settings: object) -> tuple[Any, Any]:
    """The pair, and the configuration by which its engines start on a card."""
    from flashedge.config import load_config
    from flashedge.engine.memory_plan import resolve_memory
    from flashedge.models.registry import find_pair

    given = load_config(settings)
    pair = find_pair(PAIR, given)
    return pair, resolve_memory(pair, given, fake_card(card))


def walk(folder: str) -> dict[str, Any]:
    """All of the functions below, in one process."""
    return {
        "cards": walk_cards(folder),
        "layouts": walk_layouts(folder),
        "forward": count_forward(folder),
        "passes": walk_passes(folder),
        "experimental": walk_experimental(folder),
        "commands": walk_commands(),
    }


def walk_cards(folder: str) -> dict[str, Any]:
    """For each card: the planned KV in bytes, and for each role and dtype what vLLM makes of the
    options that we start its engine with."""
    install()
    found: dict[str, Any] = {}
    for card in CARDS:
        forget_card()
        pair, config = _plan(card)
        install(card)
        found[card] = {
            "kv_bytes": [config.kv_bytes.generator, config.kv_bytes.verifier],
            "engines": {
                f"{role} {dtype}": _describe(role, dtype, config, pair, Path(folder))
                for role in ROLES
                for dtype in DTYPES
            },
        }
    return found


LAYOUTS = {
    "one each": (("4090", "3060"), "0", "1"),
    "both on two": (("4090", "4090"), "0,1", "0,1"),
    "two and one": (("3060", "3060", "4090"), "0,1", "2"),
}
"""Cards of a machine, and the setting devices of both engines."""


def walk_layouts(folder: str) -> dict[str, Any]:
    """For each of `LAYOUTS`: what vLLM makes of the options of both engines."""
    install()
    from flashedge.config import load_config
    from flashedge.engine.layout import find_layout
    from flashedge.engine.memory_plan import resolve_memory
    from flashedge.engine.vllm.engine_options import place_engine
    from flashedge.engine.vllm.process.start import ProcessSetup, set_up, show_cards
    from flashedge.models.registry import find_pair

    found: dict[str, Any] = {}
    for name, (cards, generator, verifier) in LAYOUTS.items():
        nvml = fake_cards(*cards)
        use_nvml(nvml)
        forget_card()
        given = load_config({"devices": (generator, verifier)})
        pair = find_pair(PAIR, given)
        config, layout = resolve_memory(pair, given, nvml), find_layout(given, nvml)
        found[name] = {}
        for role in ROLES:
            options = _build_options(role, "bfloat16", config, pair, Path(folder))
            options = place_engine(options, layout, role)
            with set_up(ProcessSetup(cards=options.visible_cards)), show_cards():
                own = options.build_args().create_engine_config()
                seen = _list_seen(options.cards)
            parallel = own.parallel_config
            found[name][role] = {
                "cards": seen,
                "tensor_parallel": parallel.tensor_parallel_size,
                "executor": str(parallel.distributed_executor_backend).rpartition(".")[2],
                "kv_mib": own.cache_config.kv_cache_memory_bytes >> 20,
                "kv_heads": own.model_config.get_num_kv_heads(parallel),
                "moves": layout.moves_memory,
            }
    return found


def _list_seen(count: int) -> list[int]:
    """The driver's numbers of the cards that vLLM takes for its workers of ranks 0, 1, ..."""
    from vllm.platforms import current_platform

    return [current_platform.device_id_to_physical_device_id(rank) for rank in range(count)]


def _describe(role: str, dtype: str, config: Any, pair: Any, folder: Path) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

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


def _build_config(role: str, dtype: str, config: Any, pair: Any, folder: Path) -> Any:
    """vLLM's configuration of an engine with our options."""
    return _build_options(role, dtype, config, pair, folder).build_args().create_engine_config()


def _build_options(role: str, dtype: str, config: Any, pair: Any, folder: Path) -> Any:
    from vllm.config import PoolerConfig

    from flashedge.engine.vllm.engine_options import build_options

    is_generator = role == "generator"
    spec = pair.generator if is_generator else pair.verifier
    kv_bytes = config.kv_bytes.generator if is_generator else config.kv_bytes.verifier
    path = write_config(folder / role, role)
    options = build_options(
        role, replace(spec, dtype=dtype), path, kv_bytes, None, config, on_card=True
    )
    extra: Mapping[str, Any] = (
        {"logits_processors": ["flashedge.engine.vllm.inside.noise:PositionNoise"]}
        if is_generator
        else {
            "runner": "pooling",
            "pooler_config": PoolerConfig(task="token_classify", tok_pooling_type="ALL"),
        }
    )
    extra = {"skip_tokenizer_init": True, **extra}
    return replace(options, extra=dict(extra))


def count_forward(folder: str) -> dict[str, int]:
    """The peak bytes of vLLM's forward pass at the batch limit, on tensors without data, for models
    of 7B and 1.5B. The layers run as on a card, with kernels that only say what they return."""
    install()
    from tests.support.meta_forward import count_peak, register_kernels

    register_kernels()
    pair, config = _plan()
    found = {}
    for name, changes in {
        "7B": {},
        "1.5B": {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
        },
    }.items():
        WIDTHS.update(changes)  # `write_config` of this process
        own = _build_config("verifier", "bfloat16", config, pair, Path(folder) / name)
        found[name] = count_peak(own)
    return found


def walk_experimental(folder: str) -> dict[str, Any]:
    """What vLLM makes of both engines' options where the generator has its second model runner, and
    the verifier graphs."""
    install()
    from vllm.config import vllm

    from flashedge.engine.vllm.inside.patches import ProcessKind, apply_patches

    apply_patches(ProcessKind.DAEMON)
    vllm.HAS_TRITON = True  # Triton finds no driver on a faked card
    pair, config = _plan(features="second_runner=on,verifier_graphs=on")
    return {role: _describe(role, "bfloat16", config, pair, Path(folder)) for role in ROLES}


def walk_passes(folder: str) -> dict[str, Any]:
    """What a pass of deterministic requests changes of a step on a card: the rows, the CUDA graph,
    and the splits of FlashAttention."""
    install()
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from flashedge.engine.vllm.inside.determinism.runner import force_one_split
    from flashedge.engine.vllm.shape_probe import list_shapes

    pair, config = _plan()
    own = _build_config("generator", "bfloat16", config, pair, Path(folder))
    spec = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=128, dtype=torch.bfloat16)
    builder = FlashAttentionMetadataBuilder(spec, [], own, torch.device("cpu"))
    tokens = torch.zeros(64, dtype=torch.int32)
    metadata = CommonAttentionMetadata(
        query_start_loc=torch.tensor([0, 64], dtype=torch.int32),
        query_start_loc_cpu=torch.tensor([0, 64], dtype=torch.int32),
        seq_lens=torch.tensor([640], dtype=torch.int32),
        num_reqs=1,
        num_actual_tokens=64,
        max_query_len=64,
        max_seq_len=640,
        block_table_tensor=torch.zeros(1, 64, dtype=torch.int32),
        slot_mapping=tokens.long(),
    )
    shared = builder.build(0, metadata).max_num_splits
    with force_one_split():
        of_pass = builder.build(0, metadata).max_num_splits
    sequences = own.scheduler_config.max_num_seqs
    return {
        "splits": [shared, of_pass, builder.build(0, metadata).max_num_splits],
        "rows": [shape.rows for shape in list_shapes(sequences, on_cpu=False)],
        "steps": _dispatch_steps(own),
    }


def _dispatch_steps(own: Any) -> dict[str, list[Any]]:
    """The CUDA graph and the padded rows that the model runner takes for five decodes, in a step of
    vLLM's own and in a pass."""
    from types import SimpleNamespace

    import numpy as np
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from flashedge.engine.vllm.inside.determinism import runner
    from flashedge.engine.vllm.inside.determinism.windows import ReplayPass

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
    """What the commands say on a 4090, and how the daemon's engines would start."""
    install()
    forget_card()
    from typer.testing import CliRunner

    from flashedge.cli.main import app
    from flashedge.config import load_config
    from flashedge.runtime.build import build

    found: dict[str, Any] = {}
    for name, words in {
        "fit": ("doctor", "--fit", PAIR),
        "too large": ("doctor", "--fit", "math-7b+prm-7b"),
        "doctor": ("doctor", "--json"),
        "show": ("models", "show", PAIR),
    }.items():
        done = CliRunner().invoke(app, list(words))
        found[name] = {"code": done.exit_code, "out": done.output}
    served: Any = build(load_config())._loader.shown._engines
    served._build()
    found["up"] = [
        {
            "kv_fixed": engine.options.kv_fixed,
            "sequences": engine.options.max_num_seqs,
            "graphs": list(engine.options.graph_sizes),
        }
        for engine in (served.generator, served.verifier)
    ]
    found["refused"] = _refuse({"pair": "math-7b+prm-7b"})
    found["apart"] = _build_apart()
    return found


def _build_apart() -> dict[str, Any]:
    """How the daemon's engines would start on a card each, and which settings it refuses."""
    from flashedge.config import load_config
    from flashedge.runtime.build import build

    use_nvml(fake_cards("4090", "3060", "3060"))
    forget_card()
    given = {"devices": "1,0", "features": "kv_split=on,mapped_kv=on"}  # the bundled pair
    served: Any = build(load_config(given))._loader.shown._engines
    served._build()
    engines = []
    for engine in (served.generator, served.verifier):
        options, health = engine.options, engine.health()
        engines.append(
            {
                "visible": options.visible_cards,
                "kv_mib": options.kv_bytes >> 20,
                "fixed": options.kv_fixed,
                "health": [health.cards, health.kv_memory],
            }
        )
    return {
        "engines": engines,
        "three": _refuse({"pair": PAIR, "devices": "0+1+2"}),
        "bundled": _refuse({"devices": "0+1+2"}),
    }


def _refuse(settings: Mapping[str, object]) -> str | None:
    """What the daemon says to `settings` before it starts anything."""
    from flashedge.config import load_config
    from flashedge.errors import FlashEdgeError
    from flashedge.runtime.build import build

    try:
        build(load_config(settings))
    except FlashEdgeError as error:
        return error.line
    return None
