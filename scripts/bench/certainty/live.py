"""Policies as they run, not replayed: tokens, latency and accuracy, one problem at a time
(arXiv 2412.20993 App. G.4: what asking more often costs in latency).

Rules are those that `frontier` chose on calibration problems, for the largest cap. Every round
solves each problem once under every policy, one after the other, with a seed of the round.

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

from flashedge import daemon_control
from flashedge.cli.daemon_cmds import ready_client
from flashedge.cli.progress import bar
from flashedge.config import load_config
from flashedge.evaluation.runs import result_of
from flashedge.grading import Grader
from flashedge.problem_file import LabelledProblem, read_labelled
from flashedge.statistics import mean


def main() -> None:
    options = parsed()
    report = json.loads(options.frontier.read_text().splitlines()[-1])
    cap = max(row["cap"] for row in report["table"])
    rules = {row["policy"]: row["rule"] for row in report["table"] if row["cap"] == cap}
    found = {name: rule or False for name, rule in rules.items() if rule or name == "even"}
    problems = read_labelled(options.problems, options.limit)
    settings = {"strategy": report["strategy"], "n": cap}
    rows = asyncio.run(measure(problems, settings, found, options.rounds))
    even = rows["even"]
    table = {name: figures(some, even) for name, some in rows.items()}
    print(json.dumps({**settings, "problems": len(problems), "rounds": options.rounds, **table}))


Row = tuple[float, int, bool]  # seconds, tokens with probes, whether the answer is right


async def measure(
    problems: Sequence[LabelledProblem],
    settings: Mapping[str, Any],
    policies: Mapping[str, Any],
    rounds: int,
) -> dict[str, list[Row]]:
    """The rows of each policy, in the same order of problems and seeds."""
    config = load_config({})
    ready_client(config).close()
    rows: dict[str, list[Row]] = {name: [] for name in policies}
    grader = Grader()
    total = rounds * len(problems) * len(policies)
    try:
        async with daemon_control.connect_async(config) as client:
            with bar("live", total, unit="runs") as advance:
                for seed in range(rounds):
                    for problem in problems:
                        body = {**settings, "problem": problem.text, "seed": seed}
                        for name, exits in policies.items():
                            began = time.perf_counter()
                            result = await result_of(client, {**body, "early_exit": exits})
                            seconds = time.perf_counter() - began
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


def figures(rows: Sequence[Row], even: Sequence[Row]) -> dict[str, float]:
    """Means, the median latency, and both as a ratio to the even policy's."""
    seconds, tokens, right = zip(*rows, strict=True)
    their_seconds, their_tokens, _ = zip(*even, strict=True)
    return {
        "accuracy": round(mean([float(flag) for flag in right]), 4),
        "tokens": round(mean(tokens), 1),
        "tokens_ratio": round(mean(tokens) / mean(their_tokens), 3),
        "latency_s": round(statistics.median(seconds), 3),
        "latency_ratio": round(statistics.median(seconds) / statistics.median(their_seconds), 3),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frontier", type=Path, required=True, help="what `frontier` printed")
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
