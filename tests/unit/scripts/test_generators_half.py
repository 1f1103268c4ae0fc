"""The card script of the generator's half: its order, its time, and what it compares."""

import argparse
import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.request.validation import Request
from flashedge.search.base import Finish
from flashedge.search.tree import ROOT, Tree
from flashedge.types import FinishReason, Segment, Speculation
from scripts.bench.daemon import DATA
from scripts.bench.flashtts.kv_rig import TimedSearch
from scripts.card import generators_half
from scripts.card.generators_half import AMPLE, SCARCE, Bench, compare, count_widest_level
from scripts.card.results import Results

COUNTERS = {"steps": 4, "drafted_tokens": 6, "accepted_tokens": 2, "preemptions": 0}


def build_tree() -> Tree:
    """A root with steps of 3 and 5 tokens, and one of 4 after the second."""
    tree, (short, long) = Tree.from_seed(0).expand(ROOT, 2)
    tree, (last,) = tree.expand(long.id, 1)
    for node, tokens in ((short, 3), (long, 5), (last, 4)):
        ids, logprobs = tuple(range(tokens)), (0.0,) * tokens
        end = FinishReason.BOUNDARY
        tree = tree.add_segment(
            node.id, Segment(token_ids=ids, logprobs=logprobs, text="", steps=("",), finish=end)
        )
    return tree


@dataclass
class FakeRig:
    """Takes two seconds for each search, with nothing drafted one more."""

    pair: Any = field(
        default_factory=lambda: SimpleNamespace(
            generator=SimpleNamespace(codec=SimpleNamespace(encode_chat=lambda messages: (1, 2)))
        )
    )

    async def search(self, spec: Request, way: Optimizations, manager: object) -> TimedSearch:
        took = 2.0 if way.token_drafts or way.speculation else 3.0
        finish = Finish(choice=ROOT, answer=None, votes=())
        return TimedSearch(
            outcome=Outcome(tree=build_tree(), finish=finish, history=(), cut_by=None),
            seconds=took,
            generate_s=took,
            verify_s=0.0,
            goodput=0.0,
            reuse=0.0,
            did=Speculation(drawn_tokens=9, kept_tokens=5),
            counters=COUNTERS,
            moved_bytes=0,
            record={},
        )


class FakeServers:
    async def serve_levels(self, levels: list[list[Any]]) -> tuple[float, float]:
        assert [len(nodes) for nodes in levels] == [2, 1]
        return 3.0, 1.0


def measure(folder: Path, cells: list[tuple[str, int, int]], minutes: float = 9.0) -> Any:
    asked = argparse.Namespace(
        output=folder, pair="bundled", problems=DATA / "heldout.jsonl", minutes=minutes
    )
    bench = Bench(asked, "bundled", cells, Results(folder / "found.json", "bundled"))
    bench._kinds, bench._servers = {"card": FakeRig(), "host": FakeRig()}, FakeServers()  # type: ignore[dict-item,assignment]
    asyncio.run(bench.measure_cells())
    return bench


def test_the_ways_take_turns(tmp_path: Path) -> None:
    bench = measure(tmp_path, [(AMPLE, 4, 0), (AMPLE, 4, 1)])
    rows = [json.loads(line) for line in (tmp_path / "searches.jsonl").open()]
    assert rows == bench.rows
    ways = [(row["kind"], row["way"]) for row in rows]
    first, second = ways[:12], ways[12:]
    assert first[:3] == [("card", "off"), ("host", "off"), ("card", "all")]
    assert second == first[::-1]
    assert {row["round"] for row in rows[12:]} == {1}
    assert (rows[0]["tokens_a_step"], rows[0]["rows_a_step"]) == (4.0, 5.0)  # of 12 + 4 and 20
    found = {(row["kind"], row["way"]): row for row in compare(rows)}
    one = found["card", "tokens"]
    assert (one["by_servers"], one["by_servers_generator"]) == (0.5, 0.667)
    assert (one["by_off"], one["is_equal"]) == (0.667, True)
    assert found["host", "stock"]["by_off"] == 1.0


def test_what_no_time_is_left_for_is_skipped_with_a_reason(tmp_path: Path) -> None:
    bench = measure(tmp_path, [(AMPLE, 4, 0), (AMPLE, 256, 0), (AMPLE, 4, 1)], minutes=1.0)
    assert {row["n"] for row in bench.rows} == {4}  # 256 paths would take 4 * 64 s, 4 take 4
    (skipped,) = bench._results.skipped
    assert skipped == "bundled, ample memory, n = 256, round 1"
    assert bench._results.skipped[skipped].startswith("it takes some 256 s, and ")


def test_searches_with_scarce_memory_need_a_tree(tmp_path: Path) -> None:
    bench = measure(tmp_path, [(SCARCE, 4, 0)])
    assert not bench.rows
    assert bench._results.failed == []
    assert list(bench._results.skipped.values()) == ["no tree was built with ample memory"]


def test_the_widest_level_counts_shared_tokens_once() -> None:
    assert count_widest_level(build_tree()) == 9  # of its last level: 5 + 4


def test_each_part_is_alone_and_all_are_together() -> None:
    ways = {
        name: {part for part in generators_half.DRAFTS if getattr(way, part)}
        for name, way in generators_half.WAYS.items()
    }
    assert ways["off"] == ways["stock"] == set()
    assert ways["all"] == set(generators_half.DRAFTS)
    assert ways["tokens"] == {"token_drafts"}
    assert ways["steps"] == {"speculation"}
    assert ways["commit"] == {"speculation", "early_scores", "early_commit"}
