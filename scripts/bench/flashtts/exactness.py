"""Do all optimizations together build the same trees as the baseline, on real engines?

Every strategy and n runs under a KV split that moves, and KV memory that changes its owner, at
every level. Each case reports how many trees are the same bit for bit (token ids, scores, choices),
how many chose the same (all but the last bits of scores, `tree_difference.py`), and the counters
that show that the mechanisms were at work: steps that began with a draft, preemptions, moves,
offloads, drafts that had KV when it was offloaded. Bits may differ beyond `invariant_tokens`.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from flashedge.engine.base import EngineView
from flashedge.engine.self_test_turns import Turns
from flashedge.files.problems import read_problems
from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from scripts.bench.daemon import DATA, report
from scripts.bench.flashtts.kv_rig import Rig, drive_search, forget_kv, rig
from scripts.bench.flashtts.moving_split import make_moving_split
from scripts.bench.flashtts.tree_difference import compare_outcomes
from scripts.bench.smoke import parse_arguments
from scripts.lab.scheduler_pair import ForcedPair, SchedulerPair

T = TypeVar("T")
STRATEGIES = ("beam", "dvts", "rebase", "dynamic_branching")


@dataclass(frozen=True, slots=True)
class Setting:
    """Load under which drafts are generated and steps are preempted."""

    at_once: int
    """Runs at the same time."""

    paths: tuple[int, ...]
    """Paths that the generator's share has room for, from one split to the next."""


SETTINGS = {  # by n
    4: Setting(at_once=4, paths=(2, 4, 6)),
    16: Setting(at_once=2, paths=(3, 12, 48)),
}


async def run_each(
    run: Callable[[Request], Awaitable[T]], specs: Sequence[Request], at_once: int
) -> list[T]:
    """Run every spec, `at_once` at a time. Results are in the order of the specs."""
    room = asyncio.Semaphore(at_once)

    async def one(spec: Request) -> T:
        async with room:
            return await run(spec)

    return await asyncio.gather(*(one(spec) for spec in specs))


async def compare_case(
    here: Rig, specs: Sequence[Request], views: Sequence[EngineView]
) -> dict[str, object]:
    """Run every problem with and without the optimizations, for one strategy and n."""
    pair, began = here.pair, time.monotonic()
    setting = SETTINGS[specs[0].n]
    stock = here.build_engines(Optimizations.none())
    expected = await run_each(partial(drive_search, stock), specs, setting.at_once)
    await forget_kv(pair)
    before = await pair.generator.view(), await pair.verifier.view()
    drafted = await pair.generator.process.call("get_counters")
    split = make_moving_split(views, alternates=True, paths=setting.paths)
    async with here.run_manager(split, offload=True) as manager:
        ours = here.build_engines(Optimizations(early_scores=True), manager)
        ours = replace(ours, client="one")  # all runs are drafted from each other's texts
        runs = await run_each(partial(drive_search, ours), specs, setting.at_once)
    after = await pair.generator.view(), await pair.verifier.view()
    drafts = await pair.generator.process.call("get_counters")
    codec = pair.generator.codec
    found = [
        compare_outcomes(run, base, len(codec.encode_chat(spec.problem.messages)))
        for spec, (run, *_), (base, *_) in zip(specs, runs, expected, strict=True)
    ]
    steps = sum(len(outcome.tree.nodes) - 1 for outcome, _, _ in runs)
    did = [driver.speculation for _, driver, _ in runs]
    return {
        "runs": len(runs),
        "same": sum(one.is_equal for one in found),
        "chose_same": sum(one.chose_same for one in found),
        "differ": [spec.seed for spec, one in zip(specs, found, strict=True) if not one.is_equal],
        "largest_difference": max(one.largest for one in found),
        "differ_from_tokens": min((one.from_tokens for one in found if one.from_tokens), default=0),
        "steps": steps,
        "drafted_ahead": round(sum(one.kept_steps for one in did) / steps, 3),
        "early_commits": sum(one.early_commits for one in did),
        "tokens_drafted": counted(before[0], after[0], "drafted_tokens"),
        "tokens_accepted": counted(before[0], after[0], "accepted_tokens"),
        "preemptions": [b.preemptions - a.preemptions for a, b in zip(before, after, strict=True)],
        **{
            name: sum(record[name] for _, _, record in runs) for name in ("split_moves", "offloads")
        },
        "drafts_offloaded": drafts["offloaded"] - drafted["offloaded"],
        "blocks_left": [view.blocks_used for view in after],
        "seconds": round(time.monotonic() - began, 1),
    }


def counted(before: EngineView, after: EngineView, name: str) -> int:
    return after.token_drafts[name] - before.token_drafts[name]


async def measure(asked: argparse.Namespace) -> None:
    rows = read_problems(asked.file, asked.problems)
    chosen = [Problem.from_text(row.text) for row in rows]
    cases: dict[str, object] = {}
    kind = ForcedPair if asked.wrong else SchedulerPair
    async with rig(asked.mib << 20, asked.pair, kind=kind, features=asked.features) as here:
        invariant = (await here.pair.self_test(Turns()))["invariant_tokens"]
        views = await here.pair.generator.view(), await here.pair.verifier.view()
        for n, strategy in itertools.product(asked.n, asked.strategies):
            spec = Request(problem=chosen[0], pair=asked.pair, strategy=strategy, n=n)
            specs = [replace(spec, problem=one, seed=seed) for seed, one in enumerate(chosen)]
            cases[f"{strategy} n={n}"] = found = await compare_case(here, specs, views)
            print(f"{strategy} n={n}", found, flush=True)
        engines = {"generator": here.pair.generator, "verifier": here.pair.verifier}
        means = {name: engine.health().kv_memory for name, engine in engines.items()}
    found = {"invariant_tokens": invariant, "kv_memory": means, "cases": cases}
    report(pair=asked.pair, problems=len(chosen), **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="bundled")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--file", type=Path, default=DATA / "heldout.jsonl", help="of problems")
    parser.add_argument("--mib", type=int, default=1024, help="KV of both engines together")
    parser.add_argument(
        "--n", type=int, nargs="+", choices=sorted(SETTINGS), default=sorted(SETTINGS)
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--wrong", action="store_true", help="random drafts and early branches")
    parser.add_argument(
        "--features", default="", help="as in the setting, e.g. async_scheduling=on"
    )
    asyncio.run(
        measure(parse_arguments(parser, pair="bundled", problems=1, n=[4], strategies=["beam"]))
    )


if __name__ == "__main__":
    main()
