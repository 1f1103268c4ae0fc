"""What does each optimization gain on real engines? Runs every problem on every rung of the ladder.

    python -m scripts.bench.flashtts.ladder_real [--n 4 16 64] [--kv 34MiB 512MiB] [--problems 100]

The same two engines serve all rungs (`scripts.lab.benchmark.ladder`), so the runs of a problem
follow each other in time (A B C …). Their order rotates and is reversed from problem to problem and
from round to round. Before each run both prefix caches and the verifier's memory of scores are
emptied. Each engine has half of the KV until the split moves it. The least KV that can be halved is
33 MiB, twice what the verifier needs for a request of full length.

Run `flashedge profile` first: its curves decide the split and how far batches are filled. Results
are kept in `--output`, so that the same command resumes an interrupted one. The last line is JSON:
for each KV size, n and rung the ratios to the stock loop, whether the trees are equal, and what the
mechanisms did.
"""

import argparse
import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.files.journal import Journal
from flashedge.files.problems import FileProblem, read_problems
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import Tree
from flashedge.types import Problem
from scripts.bench.daemon import DATA, report
from scripts.bench.flashtts.kv_rig import Rig, rig
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import rotate
from scripts.lab.benchmark.ladder import ALL, Rung
from scripts.lab.benchmark.live import LiveRun, RunKey, compare_runs, grade_answers, parse_budget
from scripts.lab.cli import file_digest

BY_NAME = {rung.name: rung for rung in ALL}
PROBLEMS = DATA / "heldout.jsonl"
DID = ("preemptions", "split_moves", "offloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRun(LiveRun):
    """A run with the counters of the mechanisms. Preemptions are those of both engines."""

    preemptions: int
    split_moves: int
    offloads: int


class Ladder:
    """Runs all rungs on one pair of engines. kv: the name of its KV size."""

    def __init__(self, here: Rig, kv: str, strategy: str) -> None:
        self._here = here
        self._kv = kv
        self._strategy = strategy

    async def run(self, key: RunKey, problem: FileProblem) -> LadderRun:
        rung = BY_NAME[key.rung]
        spec = Request(
            problem=Problem.from_text(problem.text),
            pair="bundled",
            strategy=self._strategy,
            n=key.n,
            seed=problem.index,
        )
        async with self._memory(rung) as manager:
            run = await self._here.search(spec, rung.optimizations, manager)
        return LadderRun(
            **key._asdict(),
            seconds=run.seconds,
            generate_s=run.generate_s,
            verify_s=run.verify_s,
            goodput=run.goodput,
            answer=run.outcome.finish.answer,
            tree=digest_tree(run.tree),
            tree_tokens=run.tree.committed_tokens,
            reuse=run.reuse,
            steps=len(run.tree.nodes) - 1,
            kept_steps=run.did.kept_steps,
            drawn_tokens=run.did.drawn_tokens,
            preemptions=run.counters["preemptions"],
            split_moves=run.record.get("split_moves", 0),
            offloads=run.record.get("offloads", 0),
        )

    @asynccontextmanager
    async def _memory(self, rung: Rung) -> AsyncIterator[KvManager | None]:
        if rung.optimizations.kv_split:
            async with self._here.run_manager(offload=rung.optimizations.offload) as manager:
                yield manager
            return
        await self._here.give_halves()
        yield None


def digest_tree(tree: Tree) -> str:
    """Hash a tree, equal for equal tokens, scores and statuses."""
    nodes = [
        (node.id, node.parent, node.segment and node.segment.token_ids, node.scores, node.status)
        for node in tree.nodes.values()
    ]
    return hashlib.sha256(json.dumps(nodes).encode()).hexdigest()[:16]


def list_runs(
    asked: argparse.Namespace, kv: str, problems: Sequence[FileProblem]
) -> Iterator[RunKey]:
    """List all runs, in their order."""
    for n in asked.n:
        for problem in problems:
            order = rotate(asked.rungs, problem.index)
            for number in range(asked.rounds):
                forward = (problem.index + number) % 2
                for rung in order if forward else order[::-1]:
                    yield RunKey(rung=rung, kv=kv, n=n, problem=problem.index, round=number)


async def measure(
    asked: argparse.Namespace, problems: Sequence[FileProblem], kept: Journal[RunKey, LadderRun]
) -> None:
    for kv in asked.kv:
        left = [key for key in list_runs(asked, kv, problems) if key not in kept.records]
        _, kv_bytes = parse_budget(kv)
        if not left or kv_bytes is None:
            continue
        async with rig(kv_bytes) as here:
            curves = here.load_curves()
            print(f"KV {kv}: {len(left)} runs left; curves: {curves.source}", flush=True)
            ladder = Ladder(here, kv, asked.strategy)
            await ladder.run(left[0], problems[left[0].problem])  # an engine's first run is slow
            for key in left:
                kept.append(await ladder.run(key, problems[key.problem]))


def average_mechanisms(runs: Sequence[LadderRun]) -> dict[str, float]:
    """Average the counters over the runs."""
    return {name: sum(getattr(run, name) for run in runs) / len(runs) for name in DID}


def build_rows(runs: Sequence[LadderRun], right: Mapping[Any, bool]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int, str], list[LadderRun]] = {}
    for run in runs:
        groups.setdefault((run.kv, run.n, run.rung), []).append(run)
    rows = compare_runs(runs, right)
    return [{**row, **average_mechanisms(groups[row["kv"], row["n"], row["rung"]])} for row in rows]


def open_records(folder: Path, strategy: str) -> Journal[RunKey, LadderRun]:
    """Open the records of a folder."""
    settings = {"strategy": strategy, "pair": "bundled", "problems": file_digest(PROBLEMS)}
    return Journal(folder / "runs.jsonl", settings, LadderRun.from_json, key=lambda run: run.key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--kv", nargs="+", default=["34MiB", "512MiB"], help="of both engines")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--strategy", default="beam")
    parser.add_argument("--rungs", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--output", type=Path, default=Path("runs/ladder"))
    asked = parse_arguments(parser, n=[4], kv=["64MiB"], problems=1, rounds=1)
    problems = read_problems(PROBLEMS, asked.problems)
    load = os.getloadavg()[0]
    with open_records(asked.output, asked.strategy) as kept:
        asyncio.run(measure(asked, problems, kept))
        keys = [key for kv in asked.kv for key in list_runs(asked, kv, problems)]
        runs = [kept.records[key] for key in keys]
    rows = build_rows(runs, asyncio.run(grade_answers(runs, problems)))
    report(problems=len(problems), load=[load, os.getloadavg()[0]], rungs=rows)


if __name__ == "__main__":
    main()
