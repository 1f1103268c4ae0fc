"""How far is the simulator from the ratios that `ladder_real` measured on this machine?

    python -m scripts.bench.flashtts.simulated_here [--ladder runs/ladder] [--problems 20]

Runs the ladder's first problems on engines that are simulated as this machine. The overheads, the
peak and the bandwidth of each model come from the profile's fits (decode for the generator, prefill
for the verifier), and each engine has cores of its own. Speculation fills batches as far as the
profile's curve is flat, as on the real engines. Step lengths come from fresh samples of the same
problems by the bundled generator, and siblings repeat each other as often as in a fresh beam search
of 16 paths. Nothing is fitted to the ladder. Scores are made up, so the trees differ: compared are
medians over the problems, of each rung against the stock loop.

Run `flashedge profile` and `ladder_real` first. The last line is JSON.
"""

import argparse
import asyncio
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from flashedge.config import Config, load_config
from flashedge.engine.memory_plan import find_max_sequences
from flashedge.engine.platform import BLOCK_TOKENS, detect_device_kind, runs_on_cpu
from flashedge.engine.profiles import find_profile
from flashedge.files.problems import FileProblem, read_problems
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.registry import find_pair
from flashedge.optimizations import Optimizations
from flashedge.profiler.measure import DECODE, PREFILL
from flashedge.profiler.profile import ModelProfile
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import Device
from flashedge.scheduling.speculation.step_costs import MOST_SEQUENCES_ON_CPU
from flashedge.search.tree import Tree
from flashedge.types import BLANK_LINE, NodeId, Problem, TokenIds
from scripts.bench.daemon import DATA, report
from scripts.bench.flashtts.kv_rig import drive_search, rig
from scripts.bench.flashtts.ladder_real import digest_tree, open_records
from scripts.bench.flashtts.study import run_in_parallel
from scripts.lab.benchmark.ladder import ALL
from scripts.lab.benchmark.live import LiveRun, compare_runs, parse_budget
from scripts.lab.benchmark.virtual_run import Setup, VirtualRun, simulate_run
from scripts.lab.sim.model import StepTrace, TraceRow

ROOM_BYTES = 512 << 20  # of KV while the samples are drawn
FRESH = 1000  # added to a problem's seed: other paths than the ladder's
COMPARED = ("speedup", "goodput_gain", "verifier_share")


async def sample_lengths(problems: Sequence[FileProblem], samples: int) -> tuple[StepTrace, float]:
    """Sample the step lengths of each problem, one row per problem. Returns them and the share of
    sibling pairs with the same words."""
    rows, same, pairs = [], 0, 0
    async with rig(ROOM_BYTES) as here:
        generator = here.pair.generator
        engines = here.build_engines(Optimizations())
        rule = generator.codec.rules[BLANK_LINE]
        for problem in problems:
            spec = Request(
                problem=Problem.from_text(problem.text),
                pair="bundled",
                strategy="self_consistency",
                n=samples,
                seed=problem.index + FRESH,
            )
            outcome, _, _ = await drive_search(engines, spec)
            paths = [n.segment.token_ids for n in outcome.tree.nodes.values() if n.segment]
            prompt = generator.codec.encode_chat(spec.problem.messages)
            lengths = [tuple(map(len, rule.split_ids(path))) for path in paths]
            rows.append(TraceRow(prompt_tokens=len(prompt), step_tokens=tuple(lengths)))
            outcome, _, _ = await drive_search(engines, replace(spec, strategy="beam", n=16))
            for siblings in list_sibling_texts(outcome.tree):
                same += sum(a == b for a, b in combinations(siblings, 2))
                pairs += math.comb(len(siblings), 2)
    return StepTrace(tuple(rows)), same / max(1, pairs)


def list_sibling_texts(tree: Tree) -> list[list[TokenIds]]:
    """List what was generated from each node."""
    texts: dict[NodeId | None, list[TokenIds]] = {}
    for node in tree.nodes.values():
        if node.segment is not None:
            texts.setdefault(node.parent, []).append(node.segment.token_ids)
    return list(texts.values())


def build_device(model: ModelProfile, phase: str) -> Device:
    """Build the device that one model's engine is, by the fit of the profile."""
    fit = model.fits[phase]
    return Device(
        name=f"this machine, {model.name}",
        flops=fit.flops_per_s or math.inf,
        bandwidth=fit.bytes_per_s or math.inf,
        memory_bytes=0,
        overhead_s=fit.overhead_s,
        sequence_s=fit.sequence_s,
    )


def build_setup(config: Config) -> Setup:
    """Build the setup, without its KV. Raises SystemExit without a profile of this machine."""
    pair = find_pair("bundled", config)
    found = find_profile(pair, config)
    if found.profile is None:
        raise SystemExit(f"no profile ({found.why}): flashedge profile")
    models = {model.name: model for model in found.profile.models}
    generator, verifier = find_pair_shapes(pair, config)
    sequences = find_max_sequences(config)
    return Setup(
        device=build_device(models["generator"], DECODE),
        verifier_device=build_device(models["verifier"], PREFILL),
        generator=generator,
        verifier=verifier,
        kv_bytes=0,
        block_tokens=BLOCK_TOKENS[detect_device_kind()],
        limits=(pair.generator.max_model_len, pair.verifier.max_model_len),
        max_num_seqs=sequences,
        most_drafted=MOST_SEQUENCES_ON_CPU if runs_on_cpu() else sys.maxsize,
    )


def simulate_cells(
    setup: Setup, trace: StepTrace, cells: Sequence[tuple[str, int]], strategy: str
) -> list[LiveRun]:
    """Simulate each (kv, n) on each row of the trace on every rung, as records of live runs."""
    tasks = [(kv, n, row) for kv, n in cells for row in range(len(trace.rows))]
    of_this = hashlib.sha256(repr((setup, trace, strategy)).encode()).hexdigest()[:8]
    done = run_in_parallel(
        f"simulated_here-{of_this}", partial(_run_rungs, setup, trace, strategy), tasks
    )
    return [LiveRun.from_json(run) for _, runs in done for run in runs]


def _run_rungs(
    setup: Setup, trace: StepTrace, strategy: str, task: tuple[str, int, int]
) -> list[dict[str, Any]]:
    kv, n, row = task
    _, kv_bytes = parse_budget(kv)
    assert kv_bytes is not None, "the ladder is climbed by sizes"
    here = replace(setup, kv_bytes=kv_bytes)
    spec = Request(problem=trace.problem(row), pair="bundled", strategy=strategy, n=n, seed=row)
    runs = [(rung.name, simulate_run(rung, here, trace, spec)) for rung in ALL]
    return [convert_to_live_run(run, name, kv, n, row).to_json() for name, run in runs]


def convert_to_live_run(run: VirtualRun, rung: str, kv: str, n: int, problem: int) -> LiveRun:
    return LiveRun(
        rung=rung,
        kv=kv,
        n=n,
        problem=problem,
        round=0,
        seconds=run.seconds,
        generate_s=run.generate_s,
        verify_s=run.verify_s,
        goodput=run.goodput,
        answer=None,
        tree=digest_tree(run.tree),
        tree_tokens=run.tree.committed_tokens,
        reuse=run.verifier_cached_tokens / max(1, run.verifier_tokens),
        steps=len(run.tree.nodes) - 1,
        kept_steps=run.speculation.kept_steps,
        drawn_tokens=run.speculation.drawn_tokens,
    )


def compare_with_measured(
    real: Sequence[dict[str, Any]], virtual: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Build a row for each cell and rung: measured, predicted, relative error."""
    predicted = {(row["kv"], row["n"], row["rung"]): row for row in virtual}
    rows = []
    for row in real:
        other = predicted[row["kv"], row["n"], row["rung"]]
        compared: dict[str, Any] = {name: row[name] for name in ("kv", "n", "rung", "problems")}
        for name in COMPARED:
            ours, theirs = (side[name] and side[name]["median"] for side in (row, other))
            compared[name] = {
                "measured": ours,
                "simulated": theirs,
                "error": theirs / ours - 1 if ours and theirs else None,
            }
        compared["latency_s"] = {"measured": row["latency_s"], "simulated": other["latency_s"]}
        rows.append(compared)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ladder", type=Path, default=Path("runs/ladder"))
    parser.add_argument("--strategy", default="beam", help="that the ladder was climbed with")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--problems", type=int, default=20, help="at most")
    asked = parser.parse_args()
    with open_records(asked.ladder, asked.strategy) as kept:
        real = [run for run in kept.records.values() if run.problem < asked.problems]
    if not real:
        raise SystemExit(f"nothing was measured in {asked.ladder}: ladder_real first")
    setup = build_setup(load_config({}))  # complains before the samples are drawn
    cells = list(dict.fromkeys((run.kv, run.n) for run in real))
    problems = read_problems(DATA / "heldout.jsonl", max(run.problem for run in real) + 1)
    trace, agreeing = asyncio.run(sample_lengths(problems, asked.samples))
    print(f"siblings with the same words: {agreeing:.1%} of all pairs", flush=True)
    setup = replace(setup, common=math.sqrt(agreeing))
    virtual = simulate_cells(setup, trace, cells, asked.strategy)
    rows = compare_with_measured(compare_runs(real, {}), compare_runs(virtual, {}))
    for row in rows:
        print(row, flush=True)
    errors = [abs(row[name]["error"]) for row in rows for name in COMPARED if row[name]["error"]]
    error = median(errors) if errors else None
    report(simulated=True, agreeing=agreeing, median_error=error, rows=rows)


if __name__ == "__main__":
    main()
