"""What do speculative beam extension and lookahead verification gain, in virtual time?

    python -m scripts.bench.flashtts.speculation_sim [--n 4 16 64] [--problems 8] [--trace FILE]

A level lasts as long as its slowest beam. While that one generates, finished beams go on; at the
next level those children that follow kept beams begin with what is there. The level is shorter
only as far as its *longest* child had a draft, so the gain depends on how irregular steps are
and how well the scores of the step before tell who is kept.

Beam searches (4 children) on the simulated RTX 4090 with 1.5B + 1.5B, in four ways: off, on, with
lookahead, and with a batch that may grow as far as a step of the simulated device stays flat. Two
traces of step lengths: `math`, real samples, a level's steps from the samples of one problem and
step (max / mean 1.5); `mixed`, the same lengths dealt out again over all problems (as independent
draws have it, 2.5). KV ample and tight.

Reported: virtual seconds and goodput (mean tokens of a completed path / mean seconds to its
completion, arXiv 2509.00195 §6.1) as ratios to off; the share of steps that began with a draft; the
share of drafted tokens that were used; seconds of the verifier. Every tree is compared with that of
off. The last line is JSON.
"""

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.events import Event, NodesMarked
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import RTX_4090, RooflineCurve
from flashedge.scheduling.speculation.draft_choice import find_flat_batch
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Speculation
from scripts.bench.daemon import DATA, report
from scripts.bench.flashtts.shapes import QWEN25_1_5B
from scripts.lab.benchmark.ladder import compute_goodput
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.engine_loop import SimConfig
from scripts.lab.sim.model import SimModel, StepTrace, TraceRow
from scripts.lab.sim.pair import SimulatedGenerator, SimulatedVerifier

CONTEXT = 4096
KV_TOKENS = {"ample": 1 << 20, "tight": 6144}
STEP = RooflineCurve(device=RTX_4090, shape=QWEN25_1_5B).decode_at(512)
FLAT = find_flat_batch(STEP, max_batch=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    optimizations: Optimizations = field(default_factory=Optimizations)
    flat_batch: int = 0


WAYS = {
    "off": Way(optimizations=Optimizations(speculation=False)),
    "on": Way(),
    "lookahead": Way(optimizations=Optimizations(lookahead=True)),
    f"flat={FLAT}": Way(flat_batch=FLAT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search. Seconds are virtual."""

    tree: Tree
    seconds: float
    verifier_s: float
    goodput: float
    did: Speculation


async def run_search(trace: StepTrace, row: int, n: int, kv_tokens: int, way: Way) -> Run:
    config = SimConfig(
        shape=QWEN25_1_5B,
        kv_bytes=kv_tokens * QWEN25_1_5B.kv_bytes_per_token,
        max_model_len=CONTEXT,
        flat_batch=way.flat_batch,
    )
    gate, loop = asyncio.Lock(), asyncio.get_running_loop()
    generator = SimulatedGenerator(config, SimModel(trace), gate=gate)
    verifier = SimulatedVerifier(config, gate=gate)
    grader = MathGrader()
    engines = Engines(
        generator=generator, verifier=verifier, grader=grader, optimizations=way.optimizations
    )
    problem = trace.problem(row)
    spec = Request(problem=problem, pair="bundled", n=n, seed=row, max_path_tokens=CONTEXT // 2)
    done_s: dict[NodeId, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, NodesMarked) and event.status == "complete":
            done_s.update(dict.fromkeys(event.nodes, loop.time()))

    prompt = generator.codec.encode_chat(problem.messages)
    driver = Driver(build_search(spec), spec, prompt, engines, note)
    tree = (await driver.run()).tree
    await grader.close()
    return Run(
        tree=tree,
        seconds=loop.time(),
        verifier_s=verifier.busy_s,
        goodput=compute_goodput([tree[node].path_tokens for node in done_s], done_s.values()),
        did=driver.speculation,
    )


def mix_lengths(trace: StepTrace, draw: Random) -> StepTrace:
    """Draw the length of every step from all problems and steps."""
    lengths = [size for row in trace.rows for sample in row.step_tokens for size in sample]
    return StepTrace(
        tuple(
            TraceRow(
                prompt_tokens=row.prompt_tokens,
                step_tokens=tuple(
                    tuple(draw.choice(lengths) for _ in sample) for sample in row.step_tokens
                ),
            )
            for row in trace.rows
        )
    )


def summarize(off: list[Run], runs: list[Run]) -> dict[str, float | bool]:
    steps = sum(len(run.tree.nodes) - 1 for run in runs)
    drawn = sum(run.did.drawn_tokens for run in runs)
    kept = sum(run.did.kept_tokens for run in runs)
    found = {
        "time_ratio": sum(r.seconds for r in off) / sum(r.seconds for r in runs),
        "goodput_ratio": mean(r.goodput / o.goodput for r, o in zip(runs, off, strict=True)),
        "best_goodput_ratio": max(r.goodput / o.goodput for r, o in zip(runs, off, strict=True)),
        "steps_drafted_ahead": sum(run.did.kept_steps for run in runs) / steps,
        "drawn_share": drawn / sum(run.tree.committed_tokens for run in runs),
        "kept_share": kept / drawn if drawn else 0.0,
        "steps_scored_ahead": sum(run.did.scored_steps for run in runs) / steps,
        "verifier_s": sum(run.verifier_s for run in runs),
    }
    same = all(run.tree == other.tree for run, other in zip(runs, off, strict=True))
    return {name: round(value, 3) for name, value in found.items()} | {"same_trees": same}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--trace", type=Path, default=DATA / "step_lengths_small.jsonl")
    return parser.parse_args()


def measure_cells(
    trace: StepTrace, problems: int, widths: list[int]
) -> Iterator[tuple[str, object]]:
    for memory, kv_tokens in KV_TOKENS.items():
        for n in widths:
            off: list[Run] = []
            for name, way in WAYS.items():
                runs = [
                    run_virtual(run_search(trace, row, n, kv_tokens, way))
                    for row in range(problems)
                ]
                off = off or runs
                yield f"{memory} n={n} {name}", summarize(off, runs)


def main() -> None:
    asked = parse_arguments()
    real = StepTrace.read(asked.trace)
    problems = min(asked.problems, len(real.rows))
    figures: dict[str, object] = {}
    for name, trace in (("math", real), ("mixed", mix_lengths(real, Random(0)))):
        for case, found in measure_cells(trace, problems, asked.n):
            print(f"{name:6} {case:24} {found}", flush=True)
            figures[f"{name} {case}"] = found
    report(problems=problems, trace=asked.trace.name, figures=figures)


if __name__ == "__main__":
    main()
