"""Live early exits, not replays: tokens, latency and accuracy (arXiv 2412.20993 App. G.4: what
frequent checks cost in latency).

The rules are those that `frontier` chose on calibration problems for the largest cap; without its
output, the one that the strategy has by default. Problems are
solved in blocks of `--at-once`, whose runs are in the daemon together. Every round solves each
block once under every policy, in an order that is reversed from block to block. Each run has its
own seed, or the verifier's cache would hold the tree of another run. `latency` is that of a run,
`wall` the time from the start of a block to its last answer. With more than one problem at once,
start the daemon with as many places: FLASHEDGE_MAX_RUNNING=16.

    python -m scripts.bench.certainty.live --frontier sc.json --problems heldout.jsonl --limit 40
    python -m scripts.bench.certainty.live --strategy self_consistency -n 8 --problems heldout.jsonl
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
from flashedge.certainty.policies import POLICIES
from flashedge.cli.connection import connect_ready
from flashedge.cli.progress import show_bar
from flashedge.client.async_client import AsyncClient
from flashedge.config import load_config
from flashedge.daemon import control as daemon_control
from flashedge.files.problems import LabelledProblem, read_labelled
from scripts.lab.runs import solve_and_delete
from scripts.lab.statistics import mean


def main() -> None:
    options = parse_options()
    found: dict[str, Any] = {"even": False}
    if options.frontier is None:
        settings = {"strategy": options.strategy, "n": options.n}
        found["default"] = True
    else:
        report = read_report(options.frontier)
        caps = [row["cap"] or report["n"] for row in report["table"]]
        settings = {"strategy": report["strategy"], "n": max(caps)}
        found |= {
            row["policy"]: row["rule"]
            for row, of in zip(report["table"], caps, strict=True)
            if of == max(caps) and row["policy"] in (options.policies or POLICIES) and row["rule"]
        }
    problems = read_labelled(options.problems, options.limit)
    measured = asyncio.run(
        measure(problems, settings, found, rounds=options.rounds, at_once=options.at_once)
    )
    even = measured["even"]
    table = {name: summarize(blocks, even) for name, blocks in measured.items()}
    asked = {"rounds": options.rounds, "at_once": options.at_once}
    print(json.dumps({**settings, "problems": len(problems), **asked, **table}))


Row = tuple[float, int, bool]  # seconds, tokens of all kinds, whether the answer is right
Block = tuple[float, list[Row]]  # seconds to the last answer, one row a problem


async def measure(
    problems: Sequence[LabelledProblem],
    settings: Mapping[str, Any],
    policies: Mapping[str, Any],
    *,
    rounds: int,
    at_once: int,
) -> dict[str, list[Block]]:
    """Solve the problems and return the blocks of each policy, in the same order of problems."""
    config = load_config({})
    connect_ready(config).close()
    measured: dict[str, list[Block]] = {name: [] for name in policies}
    grader = MathGrader()
    total = rounds * len(problems) * len(policies)
    blocks = [problems[i : i + at_once] for i in range(0, len(problems), at_once)]
    try:

        async def solve(
            client: AsyncClient, problem: LabelledProblem, body: Mapping[str, Any]
        ) -> Row:
            start = time.perf_counter()
            result = await solve_and_delete(client, {**settings, "problem": problem.text, **body})
            seconds = time.perf_counter() - start
            usage, answer = result["usage"], result["answer"]
            right = answer is not None and await grader.equal(answer, problem.answer)
            kinds = ("tree_tokens", "probe_tokens", "cancelled_tokens")
            return seconds, sum(usage[kind] for kind in kinds), right

        with show_bar("live", total, unit="runs") as advance:
            for number in range(rounds):
                for place, block in enumerate(blocks):
                    order = list(enumerate(policies.items(), number * len(policies)))
                    for seed, (name, exits) in order[:: -1 if place % 2 else 1]:
                        body = {"seed": seed, "early_exit": exits}
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


def summarize(blocks: Sequence[Block], even: Sequence[Block]) -> dict[str, float]:
    """Return means, medians of the latency and of a block's time, and ratios to the even policy."""
    walls = [wall for wall, _ in blocks]
    their_walls = [wall for wall, _ in even]
    seconds, tokens, right = zip(*(row for _, rows in blocks for row in rows), strict=True)
    their_seconds, their_tokens, _ = zip(*(row for _, rows in even for row in rows), strict=True)
    return {
        "accuracy": round(mean([float(flag) for flag in right]), 4),
        "tokens": round(mean(tokens), 1),
        "tokens_ratio": round(mean(tokens) / mean(their_tokens), 3),
        "latency_s": round(statistics.median(seconds), 3),
        "latency_ratio": round(statistics.median(seconds) / statistics.median(their_seconds), 3),
        "wall_s": round(statistics.median(walls), 3),
        "wall_ratio": round(statistics.median(walls) / statistics.median(their_walls), 3),
    }


def read_report(path: Path) -> dict[str, Any]:
    """What `frontier` printed, with JSON as the last line, or a stored report: JSON as a whole."""
    text = path.read_text()
    try:
        report: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        report = json.loads(text.splitlines()[-1])
    return report


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontier", type=Path, help="the output of `frontier`")
    parser.add_argument("--strategy", default="self_consistency", help="without --frontier")
    parser.add_argument("-n", type=int, default=8, help="without --frontier")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1, help="problems solved together")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, help="besides even")
    return parser.parse_args()


if __name__ == "__main__":
    main()
