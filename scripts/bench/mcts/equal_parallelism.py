"""What do exits and boosting gain where every variant may have equally many rollouts at once?

    python -m scripts.bench.mcts.equal_parallelism runs/mcts/heldout.jsonl [--bounds 8 32]

One M bounds every variant, as in arXiv 2604.00510, Algorithm 1: at most M searches run, and at most
M rollouts are in flight, which are 4 M sequences. So boosting has only what exits have freed. The
fair rival of dividing rollouts by need is a constant number for each search, with fewer searches at
once. `beam-8` has M searches, which are 8 M sequences, and the paper's beam its 16 jobs, which are
512. Nothing else bounds how many run (the feature `admission` is off). A search is admitted
while fewer than M run, and the others' boosts are cut for it; the paper admits it only while fewer
than M rollouts are in flight.

Loads are simulated in virtual time, by the product's driver, queue and boosting. Scores, answers
and trees are those of a recording (`record`), step lengths those of Qwen2.5-Math. All variants of
a load have the same problems at the same times. A rate is a share of the searches a second that
PE+NE+cut finishes at this M when all of the first load are there at once. Intervals: 95 %, by
bootstrap over searches, paired; that the searches of a load share a queue is not counted. Of 48 or
96 latencies the p99 is the largest, of which no bootstrap gives an interval: all at once it is the
time of the whole load. `slower` counts searches that last more than 1.02 times as long as with the
base. Each load is written to `--out` when it is done, and a second call resumes. The last line is
JSON.

Hypothesis (§5.2, §5.3): p99 1.49 times below serial with PE+NE, 1.08 below PE; boosting 1.07 below
PE+NE, at best 2.83 below serial; throughput 1.36 times serial's with PE+NE, at best 2.44 with all.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.files.journal import Journal
from flashedge.optimizations import Features
from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate
from flashedge.scheduling.rollouts.limiter import EngineLoad, Limit, RolloutCost, RolloutLimiter
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.figures import Pool, compare, measure
from scripts.bench.mcts.load import Boost, Load, run_load
from scripts.bench.mcts.load_record import LoadRecord, draw_times
from scripts.bench.mcts.paper_beam import KEPT, build_paper_beam
from scripts.bench.mcts.places import PLACES, build_place
from scripts.bench.mcts.recorded_tree import RecordedProblem, load_problems
from scripts.bench.mcts.variants import (
    BRANCHING,
    CUT,
    ONE_THRESHOLD,
    PARALLEL,
    POSITIVE,
    VARIANTS,
    Variant,
)
from scripts.bench.smoke import SMALL, parse_arguments

FILE = Path("runs/mcts/equal_parallelism.jsonl")
SATURATED = 0.0
"""The rate of a load whose searches all arrive at once."""
LOAD_SIZE, SEED = 64, 1000
SLOWER = 1.02
"""A search is counted as slower than with the base if it takes more than so many times as long."""
PAPER_JOBS = 16
"""Concurrent beam searches in §5.1."""
USUAL_JOBS = 8
"""The default of `max_running`. With a larger M, the gate with 8 jobs is the product without
admission."""
BASE = "PE+NE+cut"
CONSTANT = f"{PARALLEL} each"
"""PE+NE+cut with so many rollouts for every search, and fewer searches at once."""
BOOSTED: Mapping[str, Any] = {**POSITIVE, **CUT, "boost": True}
STATISTICS = ("mean", "p90", "p95")
HEAD = (
    "M, rate",
    "variant",
    "p50 s",
    "p95 s",
    "largest s",
    "searches/s",
    "tokens",
    "right",
    "points over serial",
    "p95 below serial",
    "below PE",
    "over its base: mean",
    "p90",
    "p95",
    "slower",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedLimiter(RolloutLimiter):
    """Lets M rollouts through, as in the paper, or what the product's gate allows, at most M."""

    bound: int
    is_gated: bool

    def limit(
        self,
        runs: Sequence[RolloutCandidate],
        allocator: Allocator,
        load: EngineLoad,
        cost: RolloutCost | None,
    ) -> Limit:
        if not self.is_gated:
            return Limit(budget=self.bound, reason="M")
        found = RolloutLimiter.limit(self, runs, allocator, load, cost)
        return replace(found, budget=min(found.budget, self.bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A variant under a bound M."""

    variant: Variant
    base: str
    """The variant to which it adds one thing."""
    jobs: int
    build: Callable[..., Any] | None = None
    """What makes its search, where the product has none like it."""


def list_trials(bound: int) -> Mapping[str, Trial]:
    """The variants, each with at most `bound` rollouts in flight."""
    fixed, gate = (BoundedLimiter(bound=bound, is_gated=gated) for gated in (False, True))
    constant = Boost(allocator=Allocator(), limiter=fixed, most=bound)
    plain = partial(Trial, jobs=bound)

    def search(*options: Mapping[str, Any], boost: Boost | None = None) -> Variant:
        return Variant(about="", options={k: v for o in options for k, v in o.items()}, boost=boost)

    found = {
        "serial": plain(variant=VARIANTS["serial"], base="serial"),
        "PE": plain(variant=VARIANTS["PE"], base="serial"),
        "PE+NE": plain(variant=VARIANTS["PE+NE"], base="PE"),
        BASE: plain(variant=VARIANTS[BASE], base="PE+NE"),
        CONSTANT: Trial(
            variant=search(VARIANTS[BASE].options, {"parallel": PARALLEL}),
            base=BASE,
            jobs=bound // PARALLEL,
        ),
        "boost": plain(variant=search(BOOSTED, boost=constant), base=BASE),
        "boost, gate": plain(
            variant=search(BOOSTED, boost=replace(constant, limiter=gate)), base=BASE
        ),
        "PE+NE, one τ": plain(variant=search(VARIANTS["PE+NE"].options, ONE_THRESHOLD), base="PE"),
        "PE+NE+cut, one τ": plain(
            variant=search(VARIANTS[BASE].options, ONE_THRESHOLD), base="PE+NE, one τ"
        ),
        "boost, one τ": plain(
            variant=search(BOOSTED, ONE_THRESHOLD, boost=constant), base="PE+NE+cut, one τ"
        ),
        "beam-8": plain(variant=VARIANTS["beam-8"], base="serial"),
    }
    if bound > USUAL_JOBS:
        usual = search(BOOSTED, boost=Boost(allocator=Allocator(), limiter=gate))
        found["boost, gate, 8 jobs"] = Trial(variant=usual, base=BASE, jobs=USUAL_JOBS)
        found["paper's beam"] = Trial(
            variant=Variant(about="", strategy="beam", paths=KEPT * BRANCHING),
            base="serial",
            jobs=PAPER_JOBS,
            build=partial(build_paper_beam, accept=POSITIVE["accept"]),
        )
    return found


class Task(NamedTuple):
    """Identifies a variant's turn at a load."""

    place: str
    bound: int
    variant: str
    share: float
    load: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """One load. Implements `JournalRecord`."""

    task: Task
    record: LoadRecord

    def to_json(self) -> dict[str, Any]:
        return {"task": list(self.task), "record": self.record.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls(task=Task(*fields["task"]), record=LoadRecord.from_json(fields["record"]))


Kept = Journal[Task, SimulatedLoad]


class Study:
    """Simulates loads, and keeps each in a file."""

    def __init__(self, problems: Sequence[RecordedProblem], size: int, journal: Kept) -> None:
        """size: searches of a load."""
        self._problems, self._size, self._journal = problems, size, journal

    def find(self, task: Task) -> LoadRecord:
        """Find a load in the file, or run it."""
        if task not in self._journal.records:
            self._journal.append(SimulatedLoad(task=task, record=self._run(task)))
        return self._journal.records[task].record

    def find_capacity(self, place: str, bound: int) -> float:
        """Searches a second of PE+NE+cut when all of the first load are there at once."""
        return self._size / self.find(Task(place, bound, BASE, SATURATED, 0)).makespan_s

    def _run(self, task: Task) -> LoadRecord:
        trial = list_trials(task.bound)[task.variant]
        rate = task.share and task.share * self.find_capacity(task.place, task.bound)
        settings = {
            "queue_limit": 100_000,
            "max_running": trial.jobs,
            "features": Features(admission=False),
        }
        load = Load(
            place=build_place(task.place),
            config=load_config(settings, environ={}),
            search=trial.variant.build_spec(),
            problems=self._choose_problems(task.load),
            times_s=draw_times(self._size, rate, SEED + task.load),
            boost=trial.variant.boost,
        )
        return run_load(load if trial.build is None else replace(load, build=trial.build))

    def _choose_problems(self, load: int) -> list[RecordedProblem]:
        """The problems of a load: each load takes the next ones of a fixed shuffle."""
        mixed = list(self._problems)
        Random(0).shuffle(mixed)
        first = load * self._size
        return [mixed[i % len(mixed)] for i in range(first, first + self._size)]


def list_cells(asked: argparse.Namespace) -> list[tuple[str, int, float]]:
    """Place, M and share of the capacity of each cell of the table."""
    return [
        (p, b, s) for p in asked.places for b in asked.bounds for s in (SATURATED, *asked.shares)
    ]


def compare_cell(
    pools: Mapping[str, Pool], trials: Mapping[str, Trial]
) -> dict[str, dict[str, Any]]:
    """Figures of each variant, compared with serial, PE, its base and constant rollouts. Intervals
    are over searches, since loads are few and each search is of another problem."""
    singles = {
        name: Pool([replace(load, searches=(one,)) for load in pool.loads for one in load.searches])
        for name, pool in pools.items()
    }
    found = {}
    for name, pool in pools.items():
        bases = dict.fromkeys(("serial", "PE", trials[name].base, CONSTANT))
        base = pools[trials[name].base]
        found[name] = {
            **measure(pool),
            **compare(singles[name], singles, tuple(bases), STATISTICS),
            "slower": sum(
                ours.latency_s > SLOWER * theirs.latency_s
                for ours, theirs in zip(pool.searches, base.searches, strict=True)
            ),
        }
    return found


def format_ratio(row: Mapping[str, Any], statistic: str, over: str) -> str:
    value, low, high = row.get(f"{statistic}_gain_over_{over}", (math.nan,) * 3)
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def format_row(cell: str, name: str, base: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    value, low, high = row["right_difference"]
    return (
        cell,
        name,
        f"{row['p50_s']:.1f}",
        f"{row['p95_s']:.1f}",
        f"{row['largest_s']:.1f}",
        f"{row['searches_per_s']:.3f}",
        f"{row['tokens']:.0f}",
        f"{row['right']:.3f}",
        f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
        format_ratio(row, "p95", "serial"),
        format_ratio(row, "p95", "PE"),
        *(format_ratio(row, statistic, base) for statistic in STATISTICS),
        str(row["slower"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", type=Path, help="a file of recorded searches")
    parser.add_argument("--bounds", type=int, nargs="+", default=[8, 32], help="values of M")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.6], help="of capacity")
    parser.add_argument("--loads", type=int, default=4)
    parser.add_argument("--size", type=int, default=LOAD_SIZE, help="searches of a load")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=["7B on two cards a model"])
    parser.add_argument("--out", type=Path, default=FILE)
    compare_all(
        parse_arguments(parser, trees=SMALL / "recorded_trees.jsonl", bounds=[9], loads=2, size=2)
    )


def compare_all(asked: argparse.Namespace) -> None:
    problems = load_problems(asked.trees)
    about = {"trees": asked.trees.name, "problems": len(problems), "size": asked.size}
    cells = list_cells(asked)
    tasks = [
        Task(*cell, load)
        for load in range(asked.loads)
        for place, bound, share in cells
        for cell in ((place, bound, name, share) for name in list_trials(bound))
    ]
    figures: dict[str, Any] = {}
    lines = []
    with Journal(asked.out, about, SimulatedLoad.from_json, lambda one: one.task) as journal:
        study = Study(problems, asked.size, journal)
        with show_bar("simulating", len(tasks), unit="loads") as advance:
            for task in tasks:
                study.find(task)
                advance(1)
        for place, bound, share in cells:
            trials = list_trials(bound)
            pools = {
                name: Pool(
                    [study.find(Task(place, bound, name, share, n)) for n in range(asked.loads)]
                )
                for name in trials
            }
            rows = compare_cell(pools, trials)
            title = f"{place}, M {bound}, {f'{share:.0%}' if share else 'all at once'}"
            figures[title] = rows
            lines += [format_row(title, name, trials[name].base, row) for name, row in rows.items()]
    print(format_table(HEAD, lines) + "\n")
    report(loads=asked.loads, size=asked.size, problems=len(problems), cells=figures)


if __name__ == "__main__":
    main()
