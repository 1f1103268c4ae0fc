"""Measures on a card what each way of drafting gains, alone and together. See generators_half.sh.

The ways are drafts of tokens, drafts of steps, and those with early scores and early commits; all
of them; and none, or our stock loop, on the same engines. Two kinds of engines can draft tokens:
the second model runner on the card, and the first one on the host, without asynchronous scheduling.
Both run in this process, so a search pays for no HTTP. Two `vllm serve` get the requests of the
same trees by HTTP (`scripts.bench.engine.replayed_search`).

With scarce KV memory each engine has room for half of what the tree's widest level holds; in the
end the memory manager moves that of both. A request that runs alone is drawn before and after: its
tokens must be the same even where kernels depend on the batch.

Each cell has a problem and a seed. The ways take turns for them, in the second round in the
opposite order. Each search is a line of FOLDER/searches.jsonl when it is done. What no time is left
for is skipped, with the reason in FOLDER/generators_half.json. The last line is JSON (`compare`).
"""

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import httpx

from flashedge.files.problems import read_problems
from flashedge.optimizations import Optimizations
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.kv.build import MOVABLE
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.records.result import build_node
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Problem
from scripts.bench.daemon import DATA, report
from scripts.bench.engine.replayed_search import SERVERS, WARM_UP, Servers, read_levels
from scripts.bench.engine.served_pair import find_served_pair
from scripts.bench.flashtts.kv_rig import Rig, TimedSearch, forget_kv, rig
from scripts.bench.flashtts.ladder_real import digest_tree
from scripts.bench.flashtts.memory import draw_tokens
from scripts.bench.flashtts.tree_difference import compare_outcomes
from scripts.card.results import BUNDLED, KV_OPTION, Results, make_folder, parse_options

OFF, ALL, STOCK = "off", "all", "stock"
DRAFTS = ("token_drafts", "speculation", "early_scores", "early_commit")
PARTS = {OFF: (), ALL: DRAFTS, "tokens": DRAFTS[:1], "steps": DRAFTS[1:2], "commit": DRAFTS[1:]}
WAYS = {
    **{
        way: Optimizations(**{name: name in parts for name in DRAFTS})
        for way, parts in PARTS.items()
    },
    STOCK: Optimizations.none(),
}
AMPLE, SCARCE, MOVING = "ample", "scarce", "scarce, moving"
KINDS = {"card": "second_runner=on,card_drafts=on", "host": "async_scheduling=off"}
"""The features of each kind of engines. The first one has the searches with scarce memory."""
Cell = tuple[str, int, int]
"""Memory, n and round."""
CELLS: Sequence[Cell] = (
    *((AMPLE, 64, 0), (SCARCE, 64, 0), (AMPLE, 16, 0), (AMPLE, 64, 1)),
    *((AMPLE, 256, 0), (AMPLE, 4, 0), (SCARCE, 256, 0), (SCARCE, 16, 0)),
)
"""Of PAIR, in the order of their worth."""
BUNDLED_CELLS: Sequence[Cell] = ((AMPLE, 64, 0), (AMPLE, 16, 0), (AMPLE, 256, 0), (AMPLE, 4, 0))
REHEARSED_KINDS = {"card": "async_scheduling=on", "host": ""}  # the second runner needs Triton
REHEARSED_CELLS: Sequence[Cell] = ((AMPLE, 16, 0), (SCARCE, 16, 0))


class Bench:
    """Measures the cells of one pair. asked: the options."""

    def __init__(
        self, asked: argparse.Namespace, pair: str, cells: Sequence[Cell], results: Results
    ) -> None:
        self._asked, self._pair, self._cells, self._results = asked, pair, cells, results
        self._kinds: dict[str, Rig] = {}
        self._servers: Servers | None = None
        self.rows: list[dict[str, Any]] = []
        self._first: dict[tuple[int, int], Outcome] = {}
        """What the first search of each n and round found. The others should find the same."""
        self._longest_s: dict[int, float] = {}
        """By n."""
        file = asked.problems if pair == asked.pair else DATA / "heldout.jsonl"
        self._problems = [Problem.from_text(each.text) for each in read_problems(file, 4)]

    async def start(self, stack: AsyncExitStack) -> None:
        """Start everything at once. What fails is left out."""
        pair, folder = find_served_pair(self._pair, self._asked.kv_bytes), self._asked.output
        kinds = REHEARSED_KINDS if self._asked.rehearse else KINDS
        clients: dict[str, httpx.AsyncClient] = {}
        wanted = {"generator": pair.build_generator(), "verifier": pair.build_verifier()}
        part = f"{self._pair}, {SERVERS}"
        await asyncio.gather(
            *(self._start_kind(stack, *kind) for kind in kinds.items()),
            self._results.start_servers(stack, part, wanted, folder, clients),
        )
        self._kinds = {kind: self._kinds[kind] for kind in kinds if kind in self._kinds}
        if clients and self._kinds:
            self._servers = Servers(**clients)
            await self._serve(self._build_request(self._cells[0][1], WARM_UP))

    async def _start_kind(self, stack: AsyncExitStack, kind: str, features: str) -> None:
        part, began = f"{self._pair}, {kind} engines", time.monotonic()
        async with self._results.part(part):
            home = make_folder(self._asked.output / "home" / kind)
            size = 2 * self._asked.kv_bytes
            here = await stack.enter_async_context(
                rig(size, self._pair, features=features, state_dir=home)
            )
            request = self._build_request(self._cells[0][1], WARM_UP)
            run = await here.search(request, WAYS[ALL])
            self._first[request.n, WARM_UP] = run.outcome
            self._kinds[kind] = here
            moves, seconds = here.pair.generator.health().kv_memory, time.monotonic() - began
            found = {"features": features, "kv_memory": moves, "seconds": round(seconds, 1)}
            self._results.add(part, found)

    def _build_request(self, n: int, turn: int) -> Request:
        problem = self._problems[turn % len(self._problems)]
        return Request(problem=problem, pair=self._pair, n=n, seed=turn)

    def _count_prompt(self, turn: int) -> int:
        codec = next(iter(self._kinds.values())).pair.generator.codec
        return len(codec.encode_chat(self._build_request(1, turn).problem.messages))

    @property
    def _left_s(self) -> float:
        return float(60 * self._asked.minutes - self._results.seconds)

    # ------------------------------------------------------------ cells

    async def measure_cells(self) -> None:
        for memory, n, turn in self._cells:
            part = f"{self._pair}, {memory} memory, n = {n}, round {turn + 1}"
            if memory == SCARCE and (n, turn) not in self._first:
                self._results.skip(part, "no tree was built with ample memory")
                continue
            if not self._has_time(part, n):
                continue
            async with self._results.part(part), asyncio.timeout(self._left_s):
                if memory == SCARCE:
                    await self._measure_scarce(part, n, turn)
                else:
                    for kind, way in self._list_ways()[:: -1 if turn % 2 else 1]:
                        await self._search(kind, way, n, turn)

    def _has_time(self, part: str, n: int) -> bool:
        """Whether a search of n paths would end in time, by the longest of as many paths, or of
        more, or of fewer as they would grow. If not, it counts as skipped."""
        known = [s * max(1.0, n / other) for other, s in self._longest_s.items()]
        expected_s, left_s = min(known, default=0.0), max(0.0, self._left_s)
        if has_time := expected_s < left_s:
            return has_time
        self._results.skip(part, f"it takes some {expected_s:.0f} s, and {left_s:.0f} s are left")
        return has_time

    def _list_ways(self) -> list[tuple[str, str]]:
        """List (kind, way) in the order of their worth."""
        kinds = list(self._kinds)
        ways = [(kind, way) for way in PARTS for kind in kinds]
        if kinds and self._servers:
            ways.insert(2 * len(kinds), (SERVERS, SERVERS))
        return [*ways, *((kind, STOCK) for kind in kinds[-1:])]

    async def _measure_scarce(self, part: str, n: int, turn: int) -> None:
        """Search with little memory, which is fixed at first and then moves."""
        kind, here = next(iter(self._kinds.items()))
        engines = (here.pair.generator, here.pair.verifier)
        need = self._count_prompt(turn) + count_widest_level(self._first[n, turn].tree)
        alone, granted = await draw_alone(here), list[int]()
        try:
            for engine in engines:
                view = await engine.view()
                blocks = need // 2 // view.block_tokens
                granted.append(await engine.budget(blocks * view.block_bytes))
            for way in (OFF, ALL):
                await self._search(kind, way, n, turn, SCARCE)
            if (memory := here.pair.generator.health().kv_memory) in MOVABLE:
                for way in (OFF, ALL):
                    async with here.run_manager(offload=True, kv_bytes=sum(granted)) as manager:
                        await self._search(kind, way, n, turn, MOVING, manager)
            else:
                self._results.skip(f"{part}, moving", f"memory does not move here: {memory}")
        finally:
            for engine in engines:
                await engine.budget(here.kv_bytes // 2)
        same = await draw_alone(here) == alone
        found = {"widest_level_tokens": need, "kv_bytes": granted, "alone_same_tokens": same}
        self._results.add(part, found)

    async def _search(
        self,
        kind: str,
        way: str,
        n: int,
        turn: int,
        memory: str = AMPLE,
        manager: KvManager | None = None,
    ) -> None:
        """Run one search, or its requests by the servers, if there is time."""
        head = {"pair": self._pair, "n": n, "memory": memory, "round": turn}
        head |= {"kind": kind, "way": way}
        if not self._has_time(" ".join(map(str, head.values())), n):
            return
        request = self._build_request(n, turn)
        if kind != SERVERS:
            run = await self._kinds[kind].search(request, WAYS[way], manager)
            first = self._first.setdefault((n, turn), run.outcome)
            row = describe_search(run, first, self._count_prompt(turn))
        else:
            row = await self._serve(request)
        self._longest_s[n] = max(row["seconds"], self._longest_s.get(n, 0.0))
        row = head | {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
        self.rows.append(row)
        with (self._asked.output / "searches.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{self._results.seconds:7.1f} s  {json.dumps(row)}", flush=True)

    async def _serve(self, request: Request) -> dict[str, Any]:
        """Let the servers compute the requests of the first tree."""
        assert self._servers is not None
        tree = self._first[request.n, request.seed].tree
        nodes = [build_node(tree, node, request) for node in tree.nodes.values()]
        usage = {"prompt_tokens": self._count_prompt(request.seed)}
        found = {"tree": {"nodes": nodes}, "usage": usage}
        generate_s, verify_s = await self._servers.serve_levels(read_levels(found))
        return {"seconds": generate_s + verify_s, "generate_s": generate_s, "verify_s": verify_s}


async def draw_alone(here: Rig) -> tuple[int, ...]:
    """Draw the tokens of one request, which must be the same whatever happened before."""
    await forget_kv(here.pair)
    return await draw_tokens(here)


# ---------------------------------------------------------------- what is written


def describe_search(run: TimedSearch, first: Outcome, prompt_tokens: int) -> dict[str, Any]:
    """Describe a search. first: what it should have found (`TreeDifference`).

    A row is what an engine step computes for one token. Rows of prompts don't count, nor do those
    of tokens that were dropped at the end of a step.
    """
    counters, tree, steps = run.counters, run.tree, max(1, run.counters["steps"])
    drawn = tree.committed_tokens + run.did.wasted_tokens
    drafts = {name: counters[name] for name in ("drafted_tokens", "accepted_tokens")}
    did = {name: run.record.get(name, 0) for name in ("split_moves", "offloads")}
    return {
        **{name: getattr(run, name) for name in ("seconds", "generate_s", "verify_s")},
        "tokens": tree.committed_tokens,
        "steps": counters["steps"],
        "tokens_a_step": drawn / steps,
        "rows_a_step": (drawn + drafts["drafted_tokens"] - drafts["accepted_tokens"]) / steps,
        **drafts,
        **asdict(run.did),
        "preemptions": counters["preemptions"],
        "moved_bytes": run.moved_bytes,
        **did,
        "tree": digest_tree(tree),
        **asdict(compare_outcomes(run.outcome, first, prompt_tokens)),
    }


def count_widest_level(tree: Tree) -> int:
    """The most tokens that the paths through one level have together, those they share once."""
    levels: defaultdict[int, set[NodeId]] = defaultdict(set)
    for node in tree.nodes.values():
        levels[node.depth].update(each.id for each in tree.path(node.id))
    return max(sum(tree[each].num_tokens for each in level) for level in levels.values())


def compare(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each search's seconds over those of the servers for its tree (`by_servers`), and over
    those of the way `off` on its engines with its memory (`by_off`), of the generator too."""
    names = ("pair", "n", "round", "memory", "kind", "way")
    known = {tuple(row[name] for name in names): row for row in rows}
    for key, row in known.items():
        found = dict(zip(names, key, strict=True))
        bases = {"by_servers": (AMPLE, SERVERS, SERVERS), "by_off": (*key[3:5], OFF)}
        for name, base in bases.items():
            if other := known.get((*key[:3], *base)):
                found[name] = round(row["seconds"] / other["seconds"], 3)
                found[f"{name}_generator"] = round(row["generate_s"] / other["generate_s"], 3)
        yield found | {name: row.get(name) for name in ("is_equal", "chose_same")}


# ---------------------------------------------------------------- the whole


async def measure_all(asked: argparse.Namespace, results: Results) -> list[dict[str, Any]]:
    cells = {BUNDLED: BUNDLED_CELLS} | {asked.pair: CELLS}
    rows: list[dict[str, Any]] = []
    start_s = 0.0
    for pair in dict.fromkeys((asked.pair, BUNDLED)):
        if results.seconds + start_s > 60 * asked.minutes:
            results.skip(pair, f"starting the other pair took {start_s:.0f} s")
            continue
        these = REHEARSED_CELLS if asked.rehearse else cells[pair]
        bench, began = Bench(asked, pair, these, results), results.seconds
        async with results.part(pair), AsyncExitStack() as stack:
            await bench.start(stack)
            start_s = results.seconds - began
            await bench.measure_cells()
        rows += bench.rows
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kv-bytes", **KV_OPTION)
    parser.add_argument("--minutes", type=float, default=13.0, help="searches end by then")
    asked = parse_options(__doc__.splitlines()[0], "generators-half", parser)
    (asked.output / "searches.jsonl").unlink(missing_ok=True)
    results = Results(asked.output / "generators_half.json", asked.pair)
    rows = asyncio.run(measure_all(asked, results))
    report(failed=results.failed, skipped=results.skipped, searches=list(compare(rows)))
    sys.exit(1 if results.failed else 0)


if __name__ == "__main__":
    main()
