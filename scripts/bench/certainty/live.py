"""Live early exits, not replays: tokens, latency and accuracy, one problem at a time (arXiv
2412.20993 App. G.4: what frequent checks cost in latency).

The rules are those that `frontier` chose on calibration problems for the largest cap. Every round
solves each problem once under every policy, in an order that is reversed from problem to problem.
Each run has its own seed, or the verifier's cache would hold the tree of another run.

    python -m scripts.bench.certainty.live --frontier sc.json --problems heldout.jsonl --limit 40
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.certainty.rules import POLICIES
from flashedge.cli.connection import connect_ready
from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.daemon import control as daemon_control
from flashedge.evaluation.runs import run_to_end
from flashedge.files.problems import LabelledProblem, read_labelled
from flashedge.statistics import mean


def main() -> None:
    options = parse_options()
    report = json.loads(options.frontier.read_text().splitlines()[-1])
    caps = [row["cap"] or report["n"] for row in report["table"]]
    cap = max(caps)
    rules = {
        row["policy"]: row["rule"]
        for row, of in zip(report["table"], caps, strict=True)
        if of == cap and row["policy"] in (options.policies or POLICIES)
    }
    found = {"even": False} | {name: rule for name, rule in rules.items() if rule}
    problems = read_labelled(options.problems, options.limit)
    settings = {"strategy": report["strategy"], "n": cap}
    rows = asyncio.run(measure(problems, settings, found, options.rounds))
    even = rows["even"]
    table = {name: summarize(some, even) for name, some in rows.items()}
    print(json.dumps({**settings, "problems": len(problems), "rounds": options.rounds, **table}))


Row = tuple[float, int, bool]  # seconds, tokens with probes, whether the answer is right


async def measure(
    problems: Sequence[LabelledProblem],
    settings: Mapping[str, Any],
    policies: Mapping[str, Any],
    rounds: int,
) -> dict[str, list[Row]]:
    """Solve the problems and return the rows of each policy, in the same order of problems."""
    config = load_config({})
    connect_ready(config).close()
    rows: dict[str, list[Row]] = {name: [] for name in policies}
    grader = MathGrader()
    total = rounds * len(problems) * len(policies)
    try:
        async with daemon_control.connect_async(config) as client:
            with show_bar("live", total, unit="runs") as advance:
                for number in range(rounds):
                    for problem in problems:
                        order = list(enumerate(policies.items(), number * len(policies)))
                        for seed, (name, exits) in order[:: -1 if problem.index % 2 else 1]:
                            body = {**settings, "problem": problem.text, "seed": seed}
                            start = time.perf_counter()
                            result = await run_to_end(client, {**body, "early_exit": exits})
                            seconds = time.perf_counter() - start
                            usage, answer = result["usage"], result["answer"]
                            right = answer is not None and await grader.equal(
                                answer, problem.answer
                            )
                            tokens = usage["tree_tokens"] + usage["probe_tokens"]
                            rows[name].append((seconds, tokens, right))
                            advance(1)
    finally:
        await grader.close()
    return rows


def summarize(rows: Sequence[Row], even: Sequence[Row]) -> dict[str, float]:
    """Return means, the median latency, and both as a ratio to the even policy's."""
    seconds, tokens, right = zip(*rows, strict=True)
    their_seconds, their_tokens, _ = zip(*even, strict=True)
    return {
        "accuracy": round(mean([float(flag) for flag in right]), 4),
        "tokens": round(mean(tokens), 1),
        "tokens_ratio": round(mean(tokens) / mean(their_tokens), 3),
        "latency_s": round(statistics.median(seconds), 3),
        "latency_ratio": round(statistics.median(seconds) / statistics.median(their_seconds), 3),
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontier", type=Path, required=True, help="the output of `frontier`")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, help="besides even")
    return parser.parse_args()


if __name__ == "__main__":
    main()
