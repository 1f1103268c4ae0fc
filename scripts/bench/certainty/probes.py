"""What probing costs: the same chains with and without probes (arXiv 2412.20993 §3.2, App. E).

`plain` makes no probe. `probed` makes all of them and never stops, with the pair's own probe
settings. Both solve one problem at a time, and the token ids of their chains are compared. They
take turns at going first, since the second one finds the prompt's KV in the cache.

    python -m scripts.bench.certainty.probes --problems heldout.jsonl --limit 100
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from flashedge.cli.connection import connect_ready
from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.daemon import control as daemon_control
from flashedge.files.problems import read_labelled
from scripts.lab.runs import solve_and_delete
from scripts.lab.statistics import mean

SIDES: Mapping[str, Mapping[str, Any]] = {"plain": {"probe_tokens": 0}, "probed": {}}


def main() -> None:
    options = parse_options()
    print(json.dumps(asyncio.run(measure(options.problems, options.limit, options.rounds))))


async def measure(path: Path, limit: int, rounds: int) -> dict[str, object]:
    """Return the number of equal chains, the tokens of probes, and the ratio of latencies."""
    config = load_config({})
    connect_ready(config).close()
    problems = read_labelled(path, limit)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    equal, chain_tokens, probe_tokens = 0, [], []
    async with AsyncExitStack() as stack:
        clients = {  # tokens are drafted from a client's earlier texts
            side: await stack.enter_async_context(daemon_control.connect_async(config, name=side))
            for side in SIDES
        }
        with show_bar("probes", rounds * len(problems), unit="chains") as advance:
            for seed in range(rounds):
                for problem in problems:
                    body = {"strategy": "probed_cot", "problem": problem.text, "seed": seed}
                    results = {}
                    for side in sorted(SIDES, reverse=problem.index % 2 == 1):
                        start = time.perf_counter()
                        request = {**body, "early_exit": False, "options": dict(SIDES[side])}
                        results[side] = await solve_and_delete(clients[side], request)
                        seconds[side].append(time.perf_counter() - start)
                    chains = [r["completions"][0]["token_ids"] for r in results.values()]
                    equal += chains[0] == chains[1]
                    chain_tokens.append(len(chains[0]))
                    probe_tokens.append(results["probed"]["usage"]["probe_tokens"])
                    advance(1)
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    return {
        "chains": len(chain_tokens),
        "equal": equal,
        "chain_tokens": round(mean(chain_tokens), 1),
        "probe_tokens": round(mean(probe_tokens), 1),
        "token_overhead": round(sum(probe_tokens) / sum(chain_tokens), 3),
        **{f"{side}_s": round(value, 3) for side, value in medians.items()},
        "latency_ratio": round(medians["probed"] / medians["plain"], 3),
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
