"""Are whole searches deterministic: their tokens, scores and choices, alone and under load?

Each search runs alone, and again beside plain requests to both engines that arrive at random, with
moving KV quotas and offloads; with the flag, without it, and
with the flag but plain scores. Speculation, lookahead and early exit
are on. Runs are compared to the bit, node by node (`runtime.records.repetition`). The kernels are
this machine's or emulated (`kernel_variance`).

    python -m scripts.bench.determinism.searches [--runs 50] [--unsafe-runs 10]
        [--searches beam mcts …] [--kernels batch row own] [--quick]

The last line is JSON. About 10 s a pair of runs on one core; --quick takes half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from flashedge.certainty.measures import ENTROPY
from flashedge.engine.base import EngineProxy, ScoreRequest, StepScores
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.events import Event
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import build_engines
from flashedge.runtime.records.repetition import RecordedRun, find_difference
from flashedge.runtime.records.result import build_result
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.determinism import PassShape
from flashedge.types import Problem, Sampling, Timing, Usage
from scripts.bench.determinism import kernel_variance
from scripts.bench.determinism.kernel_variance import Kernels
from scripts.bench.determinism.load import disturb
from scripts.bench.determinism.requests import SHAPES
from scripts.lab.benchmark.virtual_run import IntegerGrader

if TYPE_CHECKING:
    from scripts.bench.determinism.stepped_pair import SteppedPair

CASES: dict[str, dict[str, Any]] = {
    "beam": {"strategy": "beam"},
    "dvts": {"strategy": "dvts"},
    "rebase": {"strategy": "rebase"},
    "mcts": {"strategy": "mcts"},
    "mcts, 4 in parallel": {"strategy": "mcts", "options": {"parallel": 4}},
    "self_consistency": {"strategy": "self_consistency"},
}
FLAG, NONE, PLAIN_SCORES = "flag", "none", "flag, plain scores"
"""What of a search is deterministic: all, nothing, or only what the generator does."""
OPTIMIZATIONS = Optimizations(kv_split=False, offload=False, lookahead=True)
"""The quotas and the offloads are moved by `disturb`, at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run."""

    runs: int
    """Pairs of runs of each search with the flag."""
    unsafe_runs: int
    """And without all of it."""
    kernels: tuple[Kernels, ...]
    searches: tuple[str, ...] = tuple(CASES)
    n: int = 6
    max_path_tokens: int = 160
    others: int = 6
    """Plain requests that are open at any time beside a loaded search, to each engine."""
    unsafe: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {NONE: tuple(CASES), PLAIN_SCORES: ("beam", "mcts")}
    )
    """The searches that are run without the whole flag."""


QUICK = Scale(
    runs=1,
    unsafe_runs=1,
    kernels=(Kernels.BATCH,),
    n=4,
    max_path_tokens=80,
    others=3,
    unsafe={NONE: ("beam", "mcts, 4 in parallel"), PLAIN_SCORES: ("beam",)},
)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Pairs of runs, one alone and one under load."""

    runs: int = 0
    differ: int = 0
    tokens: int = 0
    """Tokens of the trees alone."""
    kept_tokens: int = 0
    """Drafted tokens that the runs under load used."""
    early: int = 0
    """Runs that early exit ended."""
    other_trees: int = 0
    """Of those that differ: other tokens or another choice, not the last bits of a figure alone."""
    preemptions: int = 0
    """In both engines under load."""
    first: str | None = None
    """The first difference."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="pairs of runs with the flag")
    parser.add_argument("--unsafe-runs", type=int, default=10, help="and without all of it")
    parser.add_argument("--searches", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--kernels", nargs="+", default=list(Kernels), choices=list(Kernels))
    parser.add_argument("--quick", action="store_true", help="one run of each case, for CI")
    arguments = parser.parse_args()
    from flashedge.engine.vllm import compat

    compat.prepare_environment(1)
    kernel_variance.install()
    from scripts.bench.determinism.stepped_pair import SteppedPair

    scale = Scale(
        runs=arguments.runs,
        unsafe_runs=arguments.unsafe_runs,
        kernels=tuple(map(Kernels, arguments.kernels)),
        searches=tuple(arguments.searches),
    )
    pair = SteppedPair("bfloat16")
    found = asyncio.run(measure(pair, QUICK if arguments.quick else scale))
    pair.close()
    print(json.dumps({"cases": found}))


async def measure(pair: SteppedPair, scale: Scale) -> list[dict[str, Any]]:
    found = []
    with pair.stepping():
        for kind in scale.kernels:
            pair.reset()
            kernel_variance.current = kind
            shape = SHAPES[kind]
            await pair.generator.set_replay_shape(shape)
            await pair.verifier.set_replay_shape(shape)
            for safety, names in {FLAG: tuple(CASES), **scale.unsafe}.items():
                for name in filter(scale.searches.__contains__, names):
                    counts = await compare(pair, scale, name, safety)
                    found.append(describe(kind, shape, name, safety, counts))
                    print(found[-1], file=sys.stderr, flush=True)
    return found


async def compare(pair: SteppedPair, scale: Scale, name: str, safety: str) -> Counts:
    """Run the search on several problems, each alone and under load."""
    counts = Counts(runs=scale.runs if safety == FLAG else scale.unsafe_runs)
    for number in range(counts.runs):
        spec = build_spec(scale, number, name, deterministic=safety != NONE)
        pair.reset()
        alone, _ = await run_search(pair, spec, safety)
        pair.reset()
        before = pair.count_preemptions()
        async with disturb(pair, spec, scale.others, Random(number)):
            loaded, kept = await run_search(pair, spec, safety)
        counts.preemptions += pair.count_preemptions() - before
        counts.tokens += sum(len(node.token_ids) for node in alone.nodes.values())
        counts.kept_tokens += kept
        counts.early += alone.choices["cut_by"] is not None
        if (difference := find_difference(alone, loaded)) is not None:
            counts.differ += 1
            counts.other_trees += find_difference(strip(alone), strip(loaded)) is not None
            counts.first = counts.first or difference
    return counts


def build_spec(scale: Scale, number: int, name: str, *, deterministic: bool) -> Request:
    draw = Random(number)
    start, lost, won = draw.randint(30, 80), draw.randint(5, 29), draw.randint(5, 40)
    text = (
        f"Tom has {start} cards. Day 1: drops {lost}. Day 2: doubles. Day 3: wins {won}. "
        "How many cards has Tom after day 3?"
    )
    return Request(
        problem=Problem.from_text(text),
        pair="bundled",
        n=scale.n,
        branching=2,
        seed=number,
        sampling=Sampling(temperature=1.0),
        max_step_tokens=40,
        max_steps=6,
        max_path_tokens=scale.max_path_tokens,
        early_exit=ExitOptions(detect=4, thresholds={ENTROPY: 0.6}),
        deterministic=deterministic,
        **CASES[name],
    )


class PlainScores(EngineProxy[VllmVerifier]):
    """Scores as if the search were not deterministic."""

    async def score(self, request: ScoreRequest) -> StepScores:
        return await self._engine.score(replace(request, deterministic=False))


async def run_search(pair: SteppedPair, spec: Request, safety: str) -> tuple[RecordedRun, int]:
    """Returns what the run would store, and how many drafted tokens it used."""
    events: list[Event] = []
    engines = build_engines(OPTIMIZATIONS, pair, grader=IntegerGrader())
    if safety == PLAIN_SCORES:
        engines = replace(engines, verifier=PlainScores(pair.verifier))
    prompt = pair.generator.codec.encode_chat(spec.problem.messages)
    driver = Driver(build_search(spec), spec, prompt, engines, events.append)
    outcome = await driver.run()
    result = build_result("run", Plan(request=spec), outcome, Usage(), Timing())
    return RecordedRun.from_log(result, events), driver.speculation.kept_tokens


def strip(run: RecordedRun) -> RecordedRun:
    """The run without its figures."""
    nodes = {node: replace(found, logprobs=(), scores=()) for node, found in run.nodes.items()}
    return replace(run, nodes=nodes, choices={**run.choices, "votes": None})


def describe(
    kernels: Kernels, shape: PassShape, name: str, safety: str, counts: Counts
) -> dict[str, Any]:
    return {
        "kernels": str(kernels),
        "windows_a_pass": shape.group,
        "search": name,
        "deterministic": safety,
        "runs": counts.runs,
        "differ": counts.differ,
        "other_trees": counts.other_trees,
        "preemptions": counts.preemptions,
        "tokens": counts.tokens,
        "kept_tokens": counts.kept_tokens,
        "early_exits": counts.early,
        "first": counts.first,
    }


if __name__ == "__main__":
    main()
