"""Does drawing the next group ahead make early exit as quick as it is cheap?

    python -m scripts.bench.scheduling.groups_ahead [--problems 60] [-n 16]

Self-consistency on the bundled pair in vLLM, one search at a time, three ways: whole (no early
exit), groups (one after the other), ahead (the next group beside the current one). Every problem is
searched all three ways, in an order that moves on by one from problem to problem, and the caches
are emptied before each search. Groups and ahead must build the same tree. What was measured is
appended to `runs/scheduling/groups_ahead.jsonl` (not tracked), and a second call resumes.

Reported for each way: seconds, their ratio to `whole` (sums over problems, with bootstrap 95 %
intervals), tokens of the tree, tokens drawn for nothing, and right answers. The machine's load is
reported too. The last line is JSON.

Hypothesis: groups take longer than whole searches, and ahead no longer than these.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.memory_plan import count_sequences
from flashedge.engine.vllm.pair import VllmPair
from flashedge.files.journal import Journal
from flashedge.models.registry import find_pair
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import build_engines
from flashedge.runtime.kv.curves import load_curves
from flashedge.runtime.programs.capacity import measure_capacity
from flashedge.runtime.programs.room_ahead import RoomAhead
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.spec import RunSpec
from flashedge.runtime.request.strategies import build_search, find_defaults
from flashedge.scheduling.programs.program import Program
from flashedge.types import Problem
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import forget_kv
from scripts.bench.real_pair import is_right, open_pair
from scripts.bench.turns import compare_seconds, rotate

FILE = Path("runs/scheduling/groups_ahead.jsonl")
WHOLE, GROUPS, AHEAD = WAYS = ("whole", "groups", "ahead")
STRATEGY, KEY = "self_consistency", "search"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One search."""

    problem: str
    way: str
    right: bool
    seconds: float
    tokens: int
    wasted_tokens: int
    is_ahead: bool
    """Whether anything was drawn ahead."""
    tree: str
    """A digest of the tree."""
    load: float
    """Of the machine, after the search."""

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


class Bench:
    """Runs one search at a time, each of which is alone on the engines."""

    def __init__(self, pair: VllmPair, grader: MathGrader) -> None:
        self._pair, self._grader = pair, grader
        self._running: list[Program] = []
        self._room = RoomAhead(lambda: self._running)

    async def learn_speed(self) -> None:
        """Load what the daemon knows of the device."""
        config, pair = load_config({}), self._pair
        curves = load_curves(find_pair("bundled", config), config)
        capacity = await measure_capacity(
            pair.generator,
            pair.verifier,
            curves.generator,
            max_running=config.max_running,
            max_sequences=count_sequences(config),
            is_shared=config.scheduling_kv_split,
        )
        print(f"curves: {curves.source}; useful batch: {capacity.useful_sequences}")
        self._room.set_capacity(capacity)

    async def run(self, row: Mapping[str, str], n: int, seed: int, way: str) -> Measured:
        spec = RunSpec(
            problem=Problem.from_text(row["problem"]),
            pair="bundled",
            strategy=STRATEGY,
            n=n,
            seed=seed,
            **find_defaults(STRATEGY),
        )
        if way != WHOLE:
            spec = replace(spec, early_exit=ExitOptions())
        await forget_kv(self._pair)
        optimizations = replace(Optimizations(), paths_ahead=way == AHEAD)
        engines = build_engines(optimizations, self._pair, grader=self._grader)
        engines = replace(engines, program=KEY, room_ahead=self._room)
        prompt = self._pair.generator.codec.encode_chat(spec.problem.messages)
        now_s = time.monotonic()
        self._running[:] = [
            Program(key=KEY, arrived_s=now_s, started_s=now_s, max_tokens=spec.max_path_tokens)
        ]
        driver = Driver(build_search(spec), spec, prompt, engines, lambda event: None)
        outcome = await driver.run()
        seconds = time.monotonic() - now_s
        return Measured(
            problem=row["id"],
            way=way,
            right=await is_right(self._grader, outcome.finish.answer, row["answer"]),
            seconds=seconds,
            tokens=outcome.tree.committed_tokens,
            wasted_tokens=driver.speculation.wasted_tokens,
            is_ahead=driver.speculation.drawn_tokens > 0,
            tree=sha256(repr(sorted(outcome.tree.nodes.items())).encode()).hexdigest(),
            load=os.getloadavg()[0],
        )


Rows = Sequence[Mapping[str, Measured]]
"""For each problem: what was measured, by way."""


def summarize(rows: Rows, way: str) -> dict[str, Any]:
    def mean(name: str) -> float:
        return float(sum(getattr(row[way], name) for row in rows) / len(rows))

    names = ("seconds", "tokens", "wasted_tokens", "right", "is_ahead")
    return {**{name: mean(name) for name in names}, "time_ratio": compare_seconds(rows, way, WHOLE)}


async def measure_all(asked: argparse.Namespace, rows: Sequence[Mapping[str, str]]) -> Rows:
    with Journal[tuple[str, str], Measured](
        asked.out, {"n": asked.n}, lambda data: Measured(**data), lambda m: (m.problem, m.way)
    ) as journal:
        async with open_pair() as (pair, grader):
            bench = Bench(pair, grader)
            await bench.learn_speed()
            for way in WAYS:
                await bench.run(rows[0], asked.n, 999, way)  # warm up
            for index, row in enumerate(rows):
                for way in rotate(WAYS, index):
                    if (row["id"], way) not in journal.records:
                        journal.append(await bench.run(row, asked.n, index, way))
        return [{way: journal.records[row["id"], way] for way in WAYS} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", type=int, default=60, help="of the held-out problems")
    parser.add_argument("-n", type=int, default=16, help="paths")
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parser.parse_args()
    rows = asyncio.run(measure_all(asked, read_problems("heldout", asked.problems)))
    other = [row[AHEAD].problem for row in rows if row[AHEAD].tree != row[GROUPS].tree]
    if other:
        raise SystemExit(f"drawn ahead, the trees of these problems differ: {', '.join(other)}")
    report(
        n=asked.n,
        problems=len(rows),
        ways={way: summarize(rows, way) for way in WAYS},
        ahead_over_groups=compare_seconds(rows, AHEAD, GROUPS),
        load=sum(one.load for row in rows for one in row.values()) / (len(WAYS) * len(rows)),
    )


if __name__ == "__main__":
    main()
