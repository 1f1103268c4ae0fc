"""Records search trees of the bundled pair on real engines, for simulations of other devices.

    python -m scripts.bench.mcts.record runs/mcts/heldout.jsonl [--problems heldout] [--count 500]

Each problem is searched with its number as the seed, by each of the given ways (`--ways`). What a
node holds is a function of its path and its seed, so the trees of several ways add up: all are kept
in one file, from which `recorded_tree.py` reads them. An interrupted recording resumes. The last
line is JSON.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from flashedge.answers.extraction import extract_answer
from flashedge.files.journal import Journal
from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import Node, NodeStatus, Tree
from flashedge.types import Problem
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import Rig, drive_search, rig
from scripts.bench.mcts.paper_beam import KEPT, build_paper_beam
from scripts.bench.smoke import parse_arguments
from scripts.lab.benchmark.live import grade_pairs

N, BRANCHING, AT_ONCE = 16, 4, 24
WAYS: Mapping[str, Mapping[str, Any]] = {
    "mcts": {"strategy": "mcts", "n": N, "aggregate": "prod", "selection": "best"},
    "beam": {"strategy": "beam", "n": 8},
    "paper's beam": {"strategy": "beam", "n": KEPT * BRANCHING, "aggregate": "prod"},
}


class RecordKey(NamedTuple):
    """Identifies a recorded search."""

    problem: int
    way: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSearch:
    """One search. A node is (parent, child index, tokens, mean log-probability, steps, scores,
    whether the path ends, answer, the sibling whose tokens it repeats); nodes[0] is the root."""

    problem: int
    way: str
    prompt_tokens: int
    nodes: tuple[tuple[Any, ...], ...]

    right: Mapping[str, bool]
    """Of each answer, whether it is right."""

    seconds: float

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.problem, self.way)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        nodes = tuple(tuple(node) for node in data["nodes"])
        return cls(**{**data, "nodes": nodes})


def list_nodes(tree: Tree) -> tuple[tuple[Any, ...], ...]:
    return tuple(_describe(tree, node) for node in tree.nodes.values())


def _describe(tree: Tree, node: Node) -> tuple[Any, ...]:
    segment = node.segment
    if segment is None or node.parent is None:
        return (node.parent, node.index)
    same = next(
        (
            other.index
            for other in tree.children(node.parent)
            if other.segment is not None and other.segment.token_ids == segment.token_ids
        ),
        node.index,
    )
    ends = segment.finish.ends_path
    answer = extract_answer(tree.path_text(node.id)) if ends else None
    return (
        node.parent,
        node.index,
        len(segment.token_ids),
        float(f"{sum(segment.logprobs) / max(1, len(segment.logprobs)):.9g}"),
        len(segment.steps),
        [float(f"{score:.9g}") for score in node.scores or ()],
        ends,
        answer,
        same,
    )


async def record(here: Rig, row: Mapping[str, str], problem: int, way: str) -> RecordedSearch:
    spec = Request(
        problem=Problem.from_text(row["problem"]),
        pair="bundled",
        seed=problem,
        branching=BRANCHING,
        **WAYS[way],
    )
    engines = here.build_engines(Optimizations.only("suffix_scoring", "prefix_order", "score_once"))
    began = time.monotonic()
    search = build_paper_beam(spec) if way == "paper's beam" else None
    outcome, _, _ = await drive_search(engines, spec, search=search)
    tree = outcome.tree
    done = [n for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    answers = {extract_answer(tree.path_text(node.id)) for node in done}
    graded = await grade_pairs(((problem, a) for a in answers if a), {problem: row["answer"]})
    return RecordedSearch(
        problem=problem,
        way=way,
        prompt_tokens=len(engines.generator.codec.encode_chat(spec.problem.messages)),
        nodes=list_nodes(tree),
        right={str(answer): is_right for (_, answer), is_right in graded.items()},
        seconds=round(time.monotonic() - began, 3),
    )


async def record_all(asked: argparse.Namespace) -> None:
    rows = read_problems(asked.problems, asked.count)
    settings = {"problems": asked.problems, "n": N, "branching": BRANCHING}
    room, began = asyncio.Semaphore(AT_ONCE), time.monotonic()
    with Journal(asked.output, settings, RecordedSearch.from_json, lambda one: one.key) as journal:
        kept = set(journal.records)

        async def one(problem: int, way: str) -> None:
            async with room:
                journal.append(await record(here, rows[problem], problem, way))

        async with rig(1 << 30) as here, asyncio.TaskGroup() as group:
            for problem in range(len(rows)):
                for way in asked.ways:
                    if RecordKey(problem, way) not in kept:
                        group.create_task(one(problem, way))
        found = journal.records.values()
        report(
            searches=len(found),
            nodes=sum(len(one.nodes) - 1 for one in found),
            tokens=sum(node[2] for one in found for node in one.nodes if len(node) > 2),
            seconds=round(time.monotonic() - began, 1),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--problems", default="heldout", help="a file of tests/data")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asyncio.run(record_all(parse_arguments(parser, output=Path("trees.jsonl"), count=1)))


if __name__ == "__main__":
    main()
