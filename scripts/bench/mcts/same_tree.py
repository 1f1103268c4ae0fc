"""Do seed and P fix the tree of a parallel search, and does a boosted run's log fix its own?

    python -m scripts.bench.mcts.same_tree [--problems 10] [--parallel 2 4 8]

On a daemon with the bundled pair. For each P and problem a search runs alone, beside eight others,
and while an engine is killed under it (generator and verifier in turn); exits are on in every
second problem. Trees are compared node by node: tokens, log-probabilities, scores, statuses. Then
as many boosted runs go on at once with the others, and each one's log is replayed
(`flashedge runs replay`). The last line is JSON.

Hypothesis (ours; arXiv 2604.00510 has no such promise): all trees are equal.
"""

import argparse
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from scripts.bench.daemon import Daemon, read_problems, report, start_daemon
from scripts.bench.mcts.variants import CUT, POSITIVE
from scripts.bench.smoke import parse_arguments

N, OTHERS = 16, 8
OTHERS_SEED = 1_000
KILL_AFTER_S = 0.5
ENGINES = ("generator", "verifier")


def list_nodes(run: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """List what has to be equal in two trees: id, tokens, score and status of each node."""
    return [(n["id"], n["token_ids"], n["score"], n["status"]) for n in run["tree"]["nodes"]]


def list_options(seed: int, **more: object) -> list[str]:
    """The arguments of a search."""
    exits = {**POSITIVE, **CUT} if seed % 2 else {}
    options = {"aggregate": "prod", **exits, **more}
    sets = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    return ["--strategy", f"mcts-{N}", "--seed", str(seed), *map(str.lower, sets)]


def solve_beside(
    served: Daemon, items: Sequence[Mapping[str, str]], problem: str, options: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """The search beside others, and how many of these still went on at its end."""
    with ThreadPoolExecutor(OTHERS) as pool:
        others = [
            pool.submit(served.solve, item["problem"], *list_options(OTHERS_SEED + k, parallel=4))
            for k, item in enumerate(items[-OTHERS:])
        ]
        found = served.solve(problem, *options)
        going_on = sum(not other.done() for other in others)
        for other in others:
            other.result()
    return found, going_on


def solve_over_kill(
    served: Daemon, engine: str, problem: str, options: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """The search while an engine is killed, and how often that engine was restarted by then."""

    def read_engine() -> dict[str, Any]:
        status = httpx.get(f"{served.url}/v1/status").json()
        return dict(status["engines"][engine])

    before = read_engine()
    killer = threading.Timer(KILL_AFTER_S, os.kill, (before["pid"], signal.SIGKILL))
    if before["pid"] is None:  # a simulated engine, with --smoke
        killer.cancel()
    killer.start()
    found = served.solve(problem, *options)
    killer.join()
    return found, read_engine()["restarts"] - before["restarts"]


def check_parallel(
    served: Daemon, items: Sequence[Mapping[str, str]], parallel: int, count: int
) -> dict[str, int]:
    counts = dict.fromkeys(
        ("cases", "same_beside", "others_at_its_end", "same_over_kill", "restarts"), 0
    )
    for seed, item in enumerate(items[:count]):
        options = list_options(seed, parallel=parallel)
        alone = list_nodes(served.solve(item["problem"], *options))
        beside, going_on = solve_beside(served, items, item["problem"], options)
        engine = ENGINES[seed % len(ENGINES)]
        over, restarts = solve_over_kill(served, engine, item["problem"], options)
        counts["cases"] += 1
        counts["same_beside"] += list_nodes(beside) == alone
        counts["others_at_its_end"] += going_on
        counts["same_over_kill"] += list_nodes(over) == alone
        counts["restarts"] += restarts
    return counts


def check_boosted(served: Daemon, items: Sequence[Mapping[str, str]], count: int) -> dict[str, int]:
    """Boosted runs at once, and the replay of each."""
    with ThreadPoolExecutor(count) as pool:
        runs = list(
            pool.map(
                lambda pair: served.solve(pair[1]["problem"], *list_options(pair[0], boost=True)),
                enumerate(items[:count]),
            )
        )
    replays = [json.loads(served.run_cli("runs", "replay", r["id"], "--json").stdout) for r in runs]
    return {
        "runs": len(runs),
        "boosted": sum(replay["allowances"] > 1 for replay in replays),
        "cancelled_nodes": sum(replay["cancelled_nodes"] for replay in replays),
        "same": sum(replay["same"] for replay in replays),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--parallel", type=int, nargs="+", default=[2, 4, 8])
    asked = parse_arguments(parser, problems=1, parallel=[2])
    items = read_problems("heldout", asked.problems + OTHERS)
    with start_daemon(profiled=True, max_running=OTHERS + 1) as served:
        found = {str(p): check_parallel(served, items, p, asked.problems) for p in asked.parallel}
        boosted = check_boosted(served, items, asked.problems)
        test = httpx.get(f"{served.url}/v1/status").json()["self_test"]
    report(n=N, parallel=found, boosted=boosted, self_test=test)


if __name__ == "__main__":
    main()
