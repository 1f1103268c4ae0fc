"""Climbs the ladder on a simulated card, to estimate what a user would get there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import mean
from typing import Any

from flashedge.config import Config
from flashedge.errors import ConfigError
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.memory.card_memory import build_idle_card
from flashedge.models.memory.fit import find_need
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.runtime.request.strategies import find_defaults
from flashedge.runtime.request.validation import Request
from flashedge.search.catalog import check_judges, parse_strategy
from scripts.lab.benchmark.devices import OVERHEADS, Overheads, find_card
from scripts.lab.benchmark.ladder import SUFFIX, Rung
from scripts.lab.benchmark.lengths import WORKLOADS, load_trace, pick_rows
from scripts.lab.benchmark.virtual_run import Setup, VirtualRun, simulate_run
from scripts.lab.sim.model import StepTrace

SHARE = 0.9
"""Share of the card's memory that the engines are configured to use."""

STUDY_OVERHEAD_BYTES = round(1.2 * 2**30)
"""What an engine takes besides weights and KV in a study that gives a share (assumed). The
published figures rest on it. Without a share the simulation plans as the engines do
(`models.memory.fit`)."""


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
    """Share of the card's memory for both engines, as in a study. None plans the memory of an idle
    card, as `doctor --fit` does."""
    kv_bytes: int | None = None
    """KV of both engines together. None takes what weights and overheads leave."""
    overheads: Overheads = OVERHEADS["typical"]
    lengths: str = "smooth"
    """How step lengths are drawn: see `LENGTHS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A checked question, with what its runs need."""

    gpu: str
    pair: Pair
    setup: Setup
    trace: StepTrace
    rows: tuple[int, ...]
    search: Request
    """The request of every run but for its problem and seed."""

    def spec(self, row: int, seed: int | None = None) -> Request:
        """The request of a problem. seed: None takes the row's number."""
        seed = row if seed is None else seed
        return replace(self.search, problem=self.trace.problem(row), seed=seed)

    def run(
        self, rung: Rung, row: int, seed: int | None = None, *, earlier: Sequence[int] = ()
    ) -> VirtualRun:
        """earlier: the rows that the client has asked before, see `simulate_run`."""
        asked = [self.spec(row) for row in earlier]
        return simulate_run(rung, self.setup, self.trace, self.spec(row, seed), earlier=asked)


def build_bench(question: Question, config: Config) -> Bench:
    """Check a question and build what its runs need.

    Raises NotFound naming the choices, RequestError for a bad n, ConfigError for a pair that does
    not fit the card, CheckpointError for a pair of unknown shape.
    """
    gpu, card = find_card(question.gpu)
    pair = find_pair(question.pair, config)
    strategy, n = parse_strategy(question.strategy)
    check_judges(strategy, pair.verifier.judges)
    observed = load_trace(question.workload)
    trace = load_trace(question.workload, question.lengths)
    shapes = find_pair_shapes(pair, config)
    if question.kv_bytes is not None:
        kv_bytes = question.kv_bytes
    elif question.share is None:
        place = build_idle_card(card.sheet, card.memory_bytes)
        kv_bytes = find_need(pair, config, place).sum_rooms(place)
    else:
        weights = sum(shape.weights_bytes for shape in shapes)
        kv_bytes = round(card.memory_bytes * question.share) - weights - 2 * STUDY_OVERHEAD_BYTES
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
        gpu=gpu,
        pair=pair,
        setup=Setup(
            device=card.build_device(question.overheads),
            generator=shapes[0],
            verifier=shapes[1],
            kv_bytes=kv_bytes,
            link=card.link,
            limits=limits,
        ),
        trace=trace,
        rows=pick_rows(observed, question.problems),
        search=Request(problem=trace.problem(0), pair=pair.name, **fields),
    )


def run_ladder(
    bench: Bench, ladder: Sequence[Rung], advance: Callable[[int], None] = lambda done: None
) -> list[dict[str, Any]]:
    """Run every problem on every rung. A row for each rung; advance: called after each problem."""
    runs: dict[str, list[VirtualRun]] = {rung.name: [] for rung in ladder}
    for rung, row in product(ladder, bench.rows):
        runs[rung.name].append(bench.run(rung, row))
        advance(1)
    return compare_rungs(ladder, runs)


def compare_rungs(
    ladder: Sequence[Rung], runs: Mapping[str, Sequence[VirtualRun]]
) -> list[dict[str, Any]]:
    """A row for each rung. Gains are over the first rung and over suffix scoring (None where that
    rung was not run)."""
    rows = []
    for rung in ladder:
        figures = summarize_runs(runs[rung.name], runs[ladder[0].name])
        suffix = runs.get(SUFFIX.name)
        over = None if suffix is None else compute_gain(runs[rung.name], suffix)
        rows.append({"rung": rung.name, "about": rung.about, **figures, "gain_over_suffix": over})
    return rows


def summarize_runs(runs: Sequence[VirtualRun], stock: Sequence[VirtualRun]) -> dict[str, Any]:
    """Means over problems. Ratios are to the stock runs of the same problems."""
    tokens = sum(r.verifier_tokens for r in runs)
    return {
        "latency_s": mean(r.seconds for r in runs),
        "generator_s": mean(r.generate_s for r in runs),
        "verifier_s": mean(r.verify_s for r in runs),
        "goodput": mean(r.goodput for r in runs),
        "goodput_gain": compute_gain(runs, stock),
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


def span_overheads(
    question: Question,
    ladder: Sequence[Rung],
    config: Config,
    advance: Callable[[int], None] = lambda done: None,
) -> tuple[Bench, list[dict[str, Any]]]:
    """Run the ladder with the typical, the lowest and the highest overheads.

    Returns the typical bench and its rows. `gain_range` and `gain_over_suffix_range` are the gains
    with the lowest and the highest overheads, smaller one first.
    """
    benches = {
        name: build_bench(replace(question, overheads=overheads), config)
        for name, overheads in OVERHEADS.items()
    }
    found = {name: run_ladder(bench, ladder, advance) for name, bench in benches.items()}
    rows = found["typical"]
    for i, row in enumerate(rows):
        for gain, span in (
            ("goodput_gain", "gain_range"),
            ("gain_over_suffix", "gain_over_suffix_range"),
        ):
            row[span] = sorted(found[name][i][gain] for name in ("low", "high"))
        row["same_trees"] = all(each[i]["same_trees"] for each in found.values())
    return benches["typical"], rows


def list_assumptions(bench: Bench, question: Question) -> dict[str, Any]:
    """What the figures rest on."""
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
        },
        "verifier_overheads": asdict(question.overheads),
        "lengths": "observed" if bench.trace.rows[0].texts else question.lengths,
        "pair": bench.pair.name,
        "strategy": bench.search.strategy,
        "n": bench.search.n,
        "workload": question.workload,
        "about": WORKLOADS[question.workload].about,
        "problems": len(bench.rows),
        "kv_bytes": bench.setup.kv_bytes,
    }


def compute_gain(runs: Sequence[VirtualRun], base: Sequence[VirtualRun]) -> float:
    """Average the ratio of goodputs over problems. 1 where nothing was completed."""
    pairs = [(a.goodput, b.goodput) for a, b in zip(runs, base, strict=True) if b.goodput]
    return mean(one / other for one, other in pairs) if pairs else 1.0
