"""Climbs the ladder on a simulated card, to tell what a user would get there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from flashedge.benchmark.devices import CALIBRATED, Card, build_device, find_card
from flashedge.benchmark.ladder import Rung
from flashedge.benchmark.lengths import WORKLOADS, load_trace, pick_rows
from flashedge.benchmark.virtual_run import Setup, VirtualRun, simulate_run
from flashedge.config import Config
from flashedge.engine.sim.trace import StepTrace
from flashedge.errors import ConfigError
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.kv_plan import estimate_kv_room
from flashedge.models.registry import find_pair
from flashedge.models.specs import RESERVED_BYTES, Pair
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import find_defaults
from flashedge.search.catalog import parse_strategy

SHARE = 0.9
"""Share of the card's memory that the engines are configured to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a user asks the simulation."""

    gpu: str
    pair: str
    strategy: str
    n: int
    workload: str = "math"
    problems: int = 4

    share: float | None = SHARE
    """Share of the card's memory for both engines. None takes all but what the driver and the
    display hold, as `doctor --fit` does."""

    kv_bytes: int | None = None
    """KV of both engines together. None takes what the weights leave of `share`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A checked question, with what its runs need."""

    card: Card
    gpu: str
    pair: Pair
    setup: Setup
    trace: StepTrace
    rows: tuple[int, ...]

    search: RunSpec
    """The request of every run but for its problem and seed."""

    def spec(self, row: int) -> RunSpec:
        return replace(self.search, problem=self.trace.problem(row), seed=row)

    def run(self, rung: Rung, row: int) -> VirtualRun:
        return simulate_run(rung, self.setup, self.trace, row, self.spec(row))


def _find_free(memory_bytes: int, share: float | None) -> int:
    return memory_bytes - RESERVED_BYTES if share is None else round(memory_bytes * share)


def build_bench(question: Question, config: Config) -> Bench:
    """Check a question and build what its runs need.

    Raises NotFound naming the choices, RequestError for a bad n, ConfigError for a pair that does
    not fit the card, CheckpointError for a pair of unknown shape.
    """
    gpu, card = find_card(question.gpu)
    pair = find_pair(question.pair, config)
    strategy, n = parse_strategy(question.strategy)
    trace = load_trace(question.workload)
    shapes = find_pair_shapes(pair, config)
    device = build_device(card)
    kv_bytes = question.kv_bytes
    if kv_bytes is None:
        weights = shapes[0].weights_bytes, shapes[1].weights_bytes
        kv_bytes = estimate_kv_room(_find_free(device.memory_bytes, question.share), weights)
    limits = pair.generator.max_model_len, pair.verifier.max_model_len
    least = [limit * shape.kv_bytes_per_token for limit, shape in zip(limits, shapes, strict=True)]
    if kv_bytes < 2 * max(least):
        raise ConfigError(
            f"{pair.name} does not fit {gpu}: {max(kv_bytes, 0) >> 20} MiB are left for KV, half "
            f"of which must hold one path ({max(least) >> 20} MiB)",
            hint=f"flashedge doctor --fit {pair.name} --gpu {gpu}",
        )
    fields: dict[str, Any] = {
        "strategy": strategy,
        "n": n or question.n,
        "sampling": pair.sampling,
        "max_step_tokens": pair.max_step_tokens,
        "max_path_tokens": pair.max_path_tokens,
        "options": pair.options.get(strategy, {}),
        **find_defaults(strategy),
    }
    return Bench(
        card=card,
        gpu=gpu,
        pair=pair,
        setup=Setup(
            device=device,
            generator=shapes[0],
            verifier=shapes[1],
            kv_bytes=kv_bytes,
            link=card.link,
            limits=limits,
        ),
        trace=trace,
        rows=pick_rows(trace, question.problems),
        search=RunSpec(problem=trace.problem(0), pair=pair.name, **fields),
    )


def run_ladder(
    bench: Bench, ladder: Sequence[Rung], advance: Callable[[int], None] = lambda done: None
) -> list[dict[str, Any]]:
    """Run every problem on every rung. A row for each rung; advance: called after each problem."""
    rows: list[dict[str, Any]] = []
    first: list[VirtualRun] = []
    for rung in ladder:
        runs = []
        for row in bench.rows:
            runs.append(bench.run(rung, row))
            advance(1)
        first = first or runs
        rows.append({"rung": rung.name, "about": rung.about, **summarize_runs(runs, first)})
    return rows


def summarize_runs(runs: Sequence[VirtualRun], stock: Sequence[VirtualRun]) -> dict[str, Any]:
    """Build the means over problems. Ratios are to the stock runs of the same problems."""
    tokens = sum(r.verifier_tokens for r in runs)
    return {
        "latency_s": mean(r.seconds for r in runs),
        "generator_s": mean(r.generate_s for r in runs),
        "verifier_s": mean(r.verify_s for r in runs),
        "goodput": mean(r.goodput for r in runs),
        "goodput_gain": _average_ratio(runs, stock, lambda r: r.goodput),
        "latency_cut": 1 - sum(r.seconds for r in runs) / sum(r.seconds for r in stock),
        "generator_peak_bytes": max(r.generator_peak_bytes for r in runs),
        "verifier_peak_bytes": max(r.verifier_peak_bytes for r in runs),
        "preemptions": mean(r.preemptions for r in runs),
        "verifier_reuse": sum(r.verifier_cached_tokens for r in runs) / tokens if tokens else 0.0,
        "split_moves": mean(r.split_moves for r in runs),
        "offloads": mean(r.offloads for r in runs),
        "offload_s": mean(r.offload_s for r in runs),
        "kept_steps": mean(r.speculation.kept_steps for r in runs),
        "steps": mean(len(r.tree.nodes) - 1 for r in runs),
        "tokens": mean(r.tree.committed_tokens for r in runs),
        "same_trees": all(a.tree == b.tree for a, b in zip(runs, stock, strict=True)),
    }


def list_assumptions(bench: Bench, question: Question) -> dict[str, Any]:
    """List what the figures rest on. Stands beside them in every output."""
    device = bench.setup.device
    return {
        "simulated": True,
        "gpu": bench.gpu,
        "device": {
            "name": device.name,
            "flops_per_s": device.flops,
            "bytes_per_s": device.bandwidth,
            "overhead_s": device.overhead_s,
            "sequence_s": device.sequence_s,
            "calibrated": bench.gpu == CALIBRATED,
        },
        "pair": bench.pair.name,
        "strategy": bench.search.strategy,
        "n": bench.search.n,
        "workload": question.workload,
        "about": WORKLOADS[question.workload].about,
        "problems": len(bench.rows),
        "kv_bytes": bench.setup.kv_bytes,
    }


def _average_ratio(
    runs: Sequence[VirtualRun],
    stock: Sequence[VirtualRun],
    measure: Callable[[VirtualRun], float],
) -> float:
    pairs = [(measure(a), measure(b)) for a, b in zip(runs, stock, strict=True) if measure(b)]
    return mean(a / b for a, b in pairs) if pairs else 1.0
