"""Live runs, not replays: tokens, latency and accuracy of several ways to solve the same problems.

    python -m scripts.bench.certainty.live -n 8 --problems heldout.jsonl --limit 40
    python -m scripts.bench.certainty.live -n 8 --problems heldout.jsonl --same-seeds --ways \\
        '{"plain": {"early_exit": false},
          "measured": {"strategy": "deepconf", "options": {"stops": false}, "early_exit": false}}'

--ways: by their names, fields of a request; the others are compared with the first. Without it,
--strategy with all of its paths and with the early exit that it has by default.

Problems are solved in blocks of `--at-once`, whose runs are in the daemon together. Every round
solves each block once in every way, in an order that is reversed from block to block. Each run has
its own seed, or the verifier's cache would hold the tree of another run; --same-seeds gives the
ways of a problem one seed, which draws the same paths where neither stops. `latency` is that of a
run, `wall` the time from the start of a block to its last answer. With more than one problem at
once, start the daemon with as many places: FLASHEDGE_MAX_RUNNING=16.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.cli.progress import show_bar
from flashedge.client.async_client import AsyncClient
from flashedge.config import load_config
from flashedge.daemon import control as daemon_control
from flashedge.files.problems import LabelledProblem, read_labelled
from scripts.bench.daemon import start_usual_daemon
from scripts.bench.smoke import parse_arguments
from scripts.lab.runs import solve_and_delete
from scripts.lab.statistics import mean


def main() -> None:
    options = parse_options()
    usual = {"all paths": {"early_exit": False}, "default": {"early_exit": True}}
    settings = {"strategy": options.strategy, "n": options.n}
    ways = {name: {**settings, **way} for name, way in (options.ways or usual).items()}
    problems = read_labelled(options.problems, options.limit)
    measured = asyncio.run(
        measure(
            problems,
            ways,
            rounds=options.rounds,
            at_once=options.at_once,
            same_seeds=options.same_seeds,
        )
    )
    first = next(iter(measured.values()))
    table = {name: summarize(blocks, first) for name, blocks in measured.items()}
    asked = {"rounds": options.rounds, "at_once": options.at_once}
    print(json.dumps({"ways": ways, "problems": len(problems), **asked, **table}))


Row = tuple[float, int, bool]  # seconds, tokens of all kinds, whether the answer is right
Block = tuple[float, list[Row]]  # seconds to the last answer, one row a problem


async def measure(
    problems: Sequence[LabelledProblem],
    ways: Mapping[str, Mapping[str, Any]],
    *,
    rounds: int,
    at_once: int,
    same_seeds: bool,
) -> dict[str, list[Block]]:
    """Solve the problems and return the blocks of each way, in the same order of problems."""
    config = load_config({})
    start_usual_daemon(config)
    measured: dict[str, list[Block]] = {name: [] for name in ways}
    grader = MathGrader()
    total = rounds * len(problems) * len(ways)
    blocks = [problems[i : i + at_once] for i in range(0, len(problems), at_once)]
    try:

        async def solve(
            client: AsyncClient, problem: LabelledProblem, body: Mapping[str, Any]
        ) -> Row:
            start = time.perf_counter()
            result = await solve_and_delete(client, {"problem": problem.text, **body})
            seconds = time.perf_counter() - start
            usage, answer = result["usage"], result["answer"]
            right = answer is not None and await grader.equal(answer, problem.answer)
            kinds = ("tree_tokens", "probe_tokens", "cancelled_tokens")
            return seconds, sum(usage[kind] for kind in kinds), right

        with show_bar("live", total, unit="runs") as advance:
            for number in range(rounds):
                for place, block in enumerate(blocks):
                    order = list(enumerate(ways.items(), number * len(ways)))
                    for seed, (name, way) in order[:: -1 if place % 2 else 1]:
                        body = {**way, "seed": number if same_seeds else seed}
                        asker = f"{name}, round {number}"  # with no earlier answer to draft from
                        async with daemon_control.connect_async(config, name=asker) as client:
                            start = time.perf_counter()
                            rows = await asyncio.gather(
                                *(solve(client, one, body) for one in block)
                            )
                            took = time.perf_counter() - start
                        measured[name].append((took, list(rows)))
                        advance(len(block))
    finally:
        await grader.close()
    return measured


def summarize(blocks: Sequence[Block], first: Sequence[Block]) -> dict[str, float]:
    """Return means, medians of the latency and of a block's time, and ratios to the first way."""
    walls = [wall for wall, _ in blocks]
    their_walls = [wall for wall, _ in first]
    seconds, tokens, right = zip(*(row for _, rows in blocks for row in rows), strict=True)
    their_seconds, their_tokens, _ = zip(*(row for _, rows in first for row in rows), strict=True)
    return {
        "accuracy": round(mean([float(flag) for flag in right]), 4),
        "tokens": round(mean(tokens), 1),
        "tokens_ratio": round(mean(tokens) / mean(their_tokens), 3),
        "latency_s": round(statistics.median(seconds), 3),
        "latency_ratio": round(statistics.median(seconds) / statistics.median(their_seconds), 3),
        "wall_s": round(statistics.median(walls), 3),
        "wall_ratio": round(statistics.median(walls) / statistics.median(their_walls), 3),
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="self_consistency")
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--ways", type=json.loads, help="JSON of request fields by name")
    parser.add_argument("--same-seeds", action="store_true", help="for all ways of a problem")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1, help="problems solved together")
    return parse_arguments(parser, n=4, limit=2, rounds=1, at_once=2)


if __name__ == "__main__":
    main()
