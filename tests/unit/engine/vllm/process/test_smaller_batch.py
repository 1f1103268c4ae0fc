"""The batch of an engine that ran out of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.process.engine_process import halve_batch
from flashedge.models.memory.engine_memory import PASS_SIZES, choose_graph_sizes

OPTIONS = EngineOptions(
    name="generator",
    model=Path("model"),
    dtype="float32",
    max_model_len=4096,
    kv_bytes=1 << 30,
    max_num_seqs=128,
    max_batched_tokens=4096,
    graph_sizes=choose_graph_sizes(128),
)


def test_both_limits_are_halved_down_to_a_floor() -> None:
    seen, now = [], halve_batch(OPTIONS)
    while now is not None:
        seen.append((now.max_num_seqs, now.max_batched_tokens))
        assert now.graph_sizes[-1] == now.max_num_seqs
        assert now.graph_sizes == choose_graph_sizes(now.max_num_seqs)
        now = halve_batch(now)
    assert seen == [(64, 2048), (32, 1024), (16, 512), (8, 512)]


def test_a_verifiers_graphs_are_of_passes_that_still_fit() -> None:
    verifier = replace(OPTIONS, name="verifier", max_batched_tokens=1024, graph_sizes=PASS_SIZES)
    smaller = halve_batch(verifier)
    assert smaller is not None
    assert smaller.graph_sizes == (32, 64, 128, 192, 256, 384, 512)


def test_nothing_else_changes() -> None:
    eager = replace(OPTIONS, graph_sizes=())
    smaller = halve_batch(eager)
    assert smaller == replace(eager, max_num_seqs=64, max_batched_tokens=2048)


def test_a_batch_that_is_configured_below_the_floor_stays() -> None:
    assert halve_batch(replace(OPTIONS, max_num_seqs=4, max_batched_tokens=256)) is None
