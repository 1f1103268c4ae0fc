"""Is the tree with every optimization on the baseline's? On real engines, for every strategy and n,
under a KV split that moves, and turns that pass, at every level.

Each case tells whether all trees are the same (token ids, scores, choices), and the counters that
say something was at stake: steps begun from kept speculation, preemptions, moves, offloads.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from flashedge.engine.base import EngineView
from flashedge.runtime.driver import Driver, Outcome
from flashedge.runtime.engines import Engines
from flashedge.runtime.spec import RunSpec
from flashedge.runtime.strategies import search_of
from flashedge.scheduling.prefix_order import arrival_order, sweep_order
from flashedge.types import Problem
from scripts.bench.daemon import problems, report
from scripts.bench.flashtts.kv_rig import Rig, driven, emptied, rig
from scripts.bench.flashtts.moving_split import moving_split

T = TypeVar("T")
STRATEGIES = ("beam", "dvts", "rebase", "dynamic_branching")
AT_ONCE = 4
PATHS = {4: (2, 4, 6), 16: (4, 8, 16)}  # room for them in shares one after the other, by n


async def baseline(engines: Engines, spec: RunSpec) -> Outcome:
    """Nothing on: stock engines, no order, no speculation, the memory as it is."""
    prompt = engines.generator.codec.encode_chat(spec.problem.messages)
    return await Driver(search_of(spec), spec, prompt, engines, lambda event: None).run()


async def each(run: Callable[[RunSpec], Awaitable[T]], specs: Sequence[RunSpec]) -> list[T]:
    """In the order of the specs, AT_ONCE at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(spec: RunSpec) -> T:
        async with room:
            return await run(spec)

    return await asyncio.gather(*(one(spec) for spec in specs))


async def case(
    here: Rig, specs: Sequence[RunSpec], views: Sequence[EngineView]
) -> dict[str, object]:
    """One strategy, one n: every problem both ways."""
    pair, grader, began = here.pair, here.grader, time.monotonic()
    stock = Engines(
        generator=pair.stock_generator,
        verifier=pair.stock_verifier,
        grader=grader,
        order=arrival_order,
        speculation=False,
    )
    expected = await each(partial(baseline, stock), specs)
    await emptied(pair)
    before = await pair.generator.view(), await pair.verifier.view()
    split = moving_split(views, in_turn=True, paths=PATHS[specs[0].n])
    async with here.keeper(split, offload=True) as keeper:
        ours = Engines(
            generator=pair.generator,
            verifier=pair.verifier,
            grader=grader,
            order=sweep_order,
            lookahead=True,
        )
        runs = await each(partial(driven, keeper, ours), specs)
    after = await pair.generator.view(), await pair.verifier.view()
    same = [found == base for (found, _, _), base in zip(runs, expected, strict=True)]
    steps = sum(len(outcome.tree.nodes) - 1 for outcome, _, _ in runs)
    did = [driver.speculation for _, driver, _ in runs]
    return {
        "runs": len(runs),
        "same": sum(same),
        "differ": [spec.seed for spec, equal in zip(specs, same, strict=True) if not equal],
        "steps": steps,
        "begun_ahead": round(sum(one.kept_steps for one in did) / steps, 3),
        "scored_ahead": round(sum(one.scored_steps for one in did) / steps, 3),
        "preemptions": [b.preemptions - a.preemptions for a, b in zip(before, after, strict=True)],
        **{
            name: sum(record[name] for _, _, record in runs) for name in ("split_moves", "offloads")
        },
        "blocks_left": [view.blocks_used for view in after],
        "seconds": round(time.monotonic() - began, 1),
    }


async def measure(asked: argparse.Namespace) -> None:
    chosen = [Problem.from_text(row["problem"]) for row in problems("heldout", asked.problems)]
    cases: dict[str, object] = {}
    async with rig(1 << 30) as here:
        here.pair.generator.speculator.flat_batch = asked.flat
        views = await here.pair.generator.view(), await here.pair.verifier.view()
        for n, strategy in itertools.product(asked.n, STRATEGIES):
            spec = RunSpec(problem=chosen[0], pair="bundled", strategy=strategy, n=n)
            specs = [replace(spec, problem=one, seed=seed) for seed, one in enumerate(chosen)]
            cases[f"{strategy} n={n}"] = found = await case(here, specs, views)
            print(f"{strategy} n={n}", found, flush=True)
    report(problems=len(chosen), flat=asked.flat, cases=cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--n", type=int, nargs="+", choices=sorted(PATHS), default=[4, 16])
    parser.add_argument("--flat", type=int, default=16, help="fill batches up to so many")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
