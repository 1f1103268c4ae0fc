"""Where does lookahead verification pay: with a verifier that caches prefixes, or without one?

    python -m scripts.bench.flashtts.verifier_cache [--n 4 16] [--problems 20] [--minutes 8]

Lookahead scores a step together with a complete draft behind it (arXiv 2509.00195 §4.1). Where the
verifier reuses KV (suffix scoring), the draft's own pass would be short, so little can be saved.
Where every score is a pass over the whole path, two steps in one pass save a whole pass.

Beam searches with the bundled pair and speculation run on real engines in four configurations:
{suffix scoring, whole-path scoring} x {lookahead off, on}. Equal paths are scored each time, as in
the paper: suffix scoring with lookahead then also saves passes of siblings with the same words,
whose scores it caches early. With --once equal paths share a pass in all four, as by default. A
problem runs in all four, twice (A B C D A B C D), with prefix caches and score memory emptied
before each search. A problem's figure is the median of its repeats. The tables give the median of
the problems' ratios, lookahead on to off, with 95 % bootstrap intervals. Trees are compared with
those of the first configuration. Seconds on a busy machine mean little: read the ratios.

--minutes limits each n: a problem starts if it is likely to end before. The last line is JSON.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import psutil

from flashedge.engine.base import EngineProxy, ScoreRequest, StepScores, Verifier
from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import Tree
from flashedge.types import Problem
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import Rig, drive_search, forget_kv, rig
from scripts.bench.flashtts.study import format_table
from scripts.bench.smoke import parse_arguments
from scripts.lab.statistics import bootstrap

KV_BYTES = 1 << 29  # ample
CONFIGURATIONS = {
    "suffix": Optimizations.only("speculation", "suffix_scoring"),
    "suffix+lookahead": Optimizations.only("speculation", "suffix_scoring", "lookahead"),
    "whole": Optimizations.only("speculation"),
    "whole+lookahead": Optimizations.only("speculation", "lookahead"),
}
COMPARISONS = (("suffix+lookahead", "suffix"), ("whole+lookahead", "whole"), ("suffix", "whole"))
RATIOS = ("seconds", "verify_s", "verifier_cpu_s", "passes", "computed_tokens")
COUNTS = ("passes", "computed_tokens", "scored_ahead", "drafted_ahead")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRun:
    """One search."""

    tree: Tree
    seconds: float

    verify_s: float
    """Time in which the search waited for scores."""

    verifier_cpu_s: float
    """Processor time of the verifier's process, which other load disturbs less."""

    passes: int
    """Calls of the verifier that computed something."""

    computed_tokens: int
    steps: int
    drafted_ahead: int
    scored_ahead: int


class CountingVerifier(EngineProxy[Verifier]):
    """Counts the passes of a verifier and the tokens that they compute."""

    def __init__(self, engine: Verifier) -> None:
        super().__init__(engine)
        self.passes = 0
        self.computed_tokens = 0

    async def score(self, request: ScoreRequest) -> StepScores:
        found = await self._engine.score(request)
        computed = found.tokens - found.cached_tokens
        self.passes += computed > 0
        self.computed_tokens += computed
        return found


async def run_search(here: Rig, optimizations: Optimizations, spec: Request) -> CacheRun:
    await forget_kv(here.pair)
    engines = here.build_engines(optimizations)
    verifier = CountingVerifier(engines.verifier)
    process = psutil.Process(here.pair.verifier.health().pid)
    before, began = process.cpu_times(), time.monotonic()
    outcome, driver, _ = await drive_search(replace(engines, verifier=verifier), spec)
    seconds, after = time.monotonic() - began, process.cpu_times()
    return CacheRun(
        tree=outcome.tree,
        seconds=seconds,
        verify_s=driver.scoring.waiting.seconds,
        verifier_cpu_s=after.user + after.system - before.user - before.system,
        passes=verifier.passes,
        computed_tokens=verifier.computed_tokens,
        steps=len(outcome.tree.nodes) - 1,
        drafted_ahead=driver.speculation.kept_steps,
        scored_ahead=driver.speculation.scored_steps,
    )


Runs = Mapping[str, Sequence[Sequence[CacheRun]]]
"""Configuration -> (problems, repeats) runs."""


def take_median(repeats: Sequence[CacheRun], name: str) -> float:
    return float(median(getattr(run, name) for run in repeats))


def compare(runs: Runs, ours: str, base: str) -> dict[str, tuple[float, float, float]]:
    """Median of the problems' ratios with its interval, for each measure."""
    found = {}
    for name in RATIOS:
        ratios = [
            take_median(one, name) / take_median(other, name)
            for one, other in zip(runs[ours], runs[base], strict=True)
        ]
        low, high = bootstrap(ratios, median)
        found[name] = (round(median(ratios), 3), round(low, 3), round(high, 3))
    return found


def summarize(runs: Runs) -> dict[str, Any]:
    """Summarize the runs of one n."""
    first = next(iter(runs.values()))
    same = [
        all(run.tree == first[i][0].tree for each in runs.values() for run in each[i])
        for i in range(len(first))
    ]
    means: dict[str, dict[str, float]] = {}
    for config, each in runs.items():
        flat = [run for repeats in each for run in repeats]
        means[config] = {
            **{name: round(sum(getattr(r, name) for r in flat) / len(flat), 1) for name in COUNTS},
            "steps": round(sum(r.steps for r in flat) / len(flat), 1),
            "seconds": round(median(r.seconds for r in flat), 3),
            "verify_s": round(median(r.verify_s for r in flat), 3),
        }
    return {
        "problems": len(first),
        "same_trees": sum(same),
        "means": means,
        "ratios": {f"{ours} / {base}": compare(runs, ours, base) for ours, base in COMPARISONS},
    }


def format_summary(n: int, found: Mapping[str, Any]) -> str:
    lines = [
        (n, pair, *(f"{v:.2f} ({low:.2f}–{high:.2f})" for v, low, high in ratios.values()))
        for pair, ratios in found["ratios"].items()
    ]
    return format_table(("n", "ratio", *RATIOS), lines, f"{found['problems']} problems")


async def measure_n(here: Rig, n: int, asked: argparse.Namespace) -> dict[str, Any]:
    chosen = [Problem.from_text(row["problem"]) for row in read_problems("heldout", asked.problems)]
    runs: dict[str, list[list[CacheRun]]] = {name: [] for name in CONFIGURATIONS}
    configurations = {
        name: replace(optimizations, score_once=asked.once)
        for name, optimizations in CONFIGURATIONS.items()
    }
    for optimizations in configurations.values():  # the first runs of an engine are slow
        await run_search(
            here, optimizations, Request(problem=chosen[0], pair="bundled", n=4, seed=999)
        )
    began = time.monotonic()
    for seed, problem in enumerate(chosen):
        spent = time.monotonic() - began
        if spent + spent / max(1, seed) > 60 * asked.minutes:
            break
        spec = Request(problem=problem, pair="bundled", n=n, seed=seed)
        for name in CONFIGURATIONS:
            runs[name].append([])
        for name in [*CONFIGURATIONS] * asked.repeats:
            runs[name][-1].append(await run_search(here, configurations[name], spec))
    return summarize(runs)


async def measure(asked: argparse.Namespace) -> None:
    load, found = os.getloadavg()[0], {}
    async with rig(KV_BYTES) as here:
        for n in asked.n:
            found[n] = await measure_n(here, n, asked)
            print(format_summary(n, found[n]), flush=True)
    report(
        strategy="beam",
        repeats=asked.repeats,
        score_once=asked.once,
        load=[round(load, 1), round(os.getloadavg()[0], 1)],
        by_n=found,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--once", action="store_true", help="equal paths share a pass")
    asyncio.run(measure(parse_arguments(parser, n=[4], problems=1, repeats=1)))


if __name__ == "__main__":
    main()
