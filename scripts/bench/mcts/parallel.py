"""What do parallel rollouts cost and gain on the bundled pair, and what does waiting cost?

    python -m scripts.bench.mcts.parallel [--problems 100] [-n 16] [--parallel 1 2 4 8]

Rollouts in flight share the engines' steps: a step of a small batch takes nearly as long as one of
a larger, so P rollouts finish sooner than one after the other. They choose with older statistics,
which may send them to worse leaves. Results that are taken in the order of launch make the tree a
function of seed and P; an expansion that is done early then waits for its turn.

Held-out problems on real engines, one search at a time: each P with both ways to take results, in
an order that moves on by one from problem to problem; the caches are emptied before each search.
What was measured is appended to `runs/mcts/parallel.jsonl` (not tracked), and a second call
resumes.

Reported for each way: accuracy, tokens of the tree, cancelled tokens, seconds and their ratio to
P = 1 (sums over problems, with bootstrap 95 % intervals); duplicates, the share of rollouts whose
path says the same as an earlier one's; waits, how often a rollout reached a node that another one
was expanding, per rollout; the mean of rollouts in flight, and of those that do not wait so.
`waiting_costs` is the ratio of seconds in launch order to seconds by arrival at the same P. The
machine's load is reported too: on a busy machine seconds mean little. The last line is JSON.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashedge.files.journal import Journal
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import forget_kv
from scripts.bench.mcts.rig import Bench, build_spec, count_duplicates, open_bench
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import compare_seconds, rotate
from scripts.lab.statistics import bootstrap

FOLDER = Path("runs/mcts")
WAYS = ("launch", "arrival")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One search."""

    problem: str
    way: str
    """P and the order, such as 4-launch."""
    right: bool
    seconds: float
    tokens: int
    cancelled_tokens: int
    rollouts: int
    duplicates: int
    waits: int
    mean_in_flight: float
    mean_expanding: float

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


def list_ways(parallel: Sequence[int]) -> list[tuple[int, str]]:
    """One rollout at a time has one order only."""
    return [(p, take) for p in parallel for take in WAYS[: 1 if p == 1 else 2]]


async def measure(bench: Bench, row: Mapping[str, str], index: int, n: int, way: str) -> Measured:
    p, take = way.split("-")
    await forget_kv(bench.pair)
    spec = build_spec(row, n=n, seed=index, parallel=int(p), take=take)
    found = await bench.run(row, spec)
    state = found.state
    return Measured(
        problem=row["id"],
        way=way,
        right=found.right,
        seconds=found.seconds,
        tokens=found.outcome.tree.committed_tokens,
        cancelled_tokens=found.cancelled_tokens,
        rollouts=len(state.rollouts),
        duplicates=count_duplicates(state),
        waits=state.num_waits,
        mean_in_flight=found.mean_in_flight,
        mean_expanding=found.mean_expanding,
    )


Rows = Sequence[Mapping[str, Measured]]
"""For each problem: what was measured, by way."""


def summarize(rows: Rows, way: str, base: str) -> dict[str, Any]:
    def mean(of: Rows, name: str) -> float:
        return float(sum(getattr(row[way], name) for row in of) / len(of))

    def share(name: str, of_name: str) -> float:
        whole = sum(getattr(row[way], of_name) for row in rows)
        return float(sum(getattr(row[way], name) for row in rows) / max(1, whole))

    return {
        "accuracy": [mean(rows, "right"), *bootstrap(rows, lambda of: mean(of, "right"))],
        "tokens": mean(rows, "tokens"),
        "cancelled_tokens": mean(rows, "cancelled_tokens"),
        "seconds": mean(rows, "seconds"),
        "time_ratio": compare_seconds(rows, way, base),
        "duplicates": share("duplicates", "rollouts"),
        "waits": share("waits", "rollouts"),
        "in_flight": mean(rows, "mean_in_flight"),
        "expanding": mean(rows, "mean_expanding"),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--problems", type=int, default=100, help="of the held-out problems")
    parser.add_argument("-n", type=int, default=16, help="rollouts")
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path, default=FOLDER / "parallel.jsonl")
    options = parse_arguments(parser, problems=1, n=4, parallel=[1, 2])
    rows = read_problems("heldout", options.problems)
    ways = [f"{p}-{take}" for p, take in list_ways(options.parallel)]
    load: list[float] = []
    with Journal[tuple[str, str], Measured](
        options.out, {"n": options.n}, lambda data: Measured(**data), lambda m: (m.problem, m.way)
    ) as journal:
        async with open_bench() as bench:
            await measure(bench, rows[0], 999, options.n, ways[-1])  # warm up
            for index, row in enumerate(rows):
                for way in rotate(ways, index):
                    if (row["id"], way) not in journal.records:
                        journal.append(await measure(bench, row, index, options.n, way))
                        load.append(os.getloadavg()[0])
        done = [{way: journal.records[row["id"], way] for way in ways} for row in rows]
    waiting = {
        p: compare_seconds(done, f"{p}-launch", f"{p}-arrival") for p in options.parallel if p > 1
    }
    report(
        problems=len(rows),
        n=options.n,
        ways={way: summarize(done, way, ways[0]) for way in ways},
        waiting_costs=waiting,
        load=[min(load), max(load)] if load else None,
    )


if __name__ == "__main__":
    asyncio.run(main())
