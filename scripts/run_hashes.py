"""Do the trees of all strategies stay the same, token for token, when the code changes?

    python -m scripts.run_hashes record scripts/run_hashes.json
    python -m scripts.run_hashes check scripts/run_hashes.json

A hash stands for all that a run decided: the tokens, log-probabilities and scores of its nodes,
which of them went on, the votes and the choice. Each strategy solves 100 held-out problems on a
daemon with simulated engines and on one with the bundled pair, several at a time. What a cancelled
node had generated depends on time and does not count. Results of the real engines hold for one kind
of CPU, which the file names. The last line is JSON; the exit code is 1 when a hash differs.
"""

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from flashedge import events
from flashedge.client.sync_client import Client
from scripts.bench.daemon import read_problems, report, start_daemon

PROBLEMS = 100
AT_ONCE = 3
DIGITS = 8
CHOICES = ("choice", "answer", "votes", "cut_by", "unlikely")
"""Fields of a result that say what the search chose."""

PLAIN: Mapping[str, object] = {"n": 8, "early_exit": False}
CASES: Mapping[str, Mapping[str, Any]] = {
    "beam": PLAIN,
    "beam, early exit": {
        "strategy": "beam",
        "n": 8,
        "early_exit": {"policy": "every_step", "detect": 2, "thresholds": {"entropy": 0.5}},
    },
    "beam, majority": {**PLAIN, "strategy": "beam", "selection": "majority", "aggregate": "prod"},
    "best_of_n": PLAIN,
    "self_consistency": PLAIN,
    "self_consistency, lead": {"strategy": "self_consistency", "n": 8},
    "deepconf": {"n": 8, "options": {"window": 16, "keep": 0.5}},
    "dvts": PLAIN,
    "dynamic_branching": PLAIN,
    "varying_granularity": PLAIN,
    "rebase": PLAIN,
    "mcts": PLAIN,
    "mcts, exits, parallel": {
        **PLAIN,
        "strategy": "mcts",
        "aggregate": "prod",
        "options": {"parallel": 3, "positive_exit": True, "negative_exit": True},
    },
    "probed_cot": {},
}
"""Requests by name. Where none is given, the name is the strategy."""

ENGINES = {"simulated": "tests.support.sim_daemon", "real": None}


def main() -> None:
    options = _parse_options()
    found = {name: hash_runs(module) for name, module in ENGINES.items() if name in options.engines}
    if options.do == "record":
        options.file.write_text(json.dumps({"cpu": describe_cpu(), **found}, indent=1) + "\n")
        report(recorded={name: _count(runs) for name, runs in found.items()})
        return
    stored = json.loads(options.file.read_text())
    different = {
        f"{engines}: {case}": _find_differences(stored[engines][case], now)
        for engines, cases in found.items()
        for case, now in cases.items()
    }
    report(
        cpu_recorded=stored["cpu"],
        cpu=describe_cpu(),
        compared={name: _count(runs) for name, runs in found.items()},
        different={case: numbers for case, numbers in different.items() if numbers},
    )
    sys.exit(any(different.values()))


def hash_runs(module: str | None) -> dict[str, str]:
    """The hashes of each case's runs, separated by blanks."""
    problems = [line["problem"] for line in read_problems("heldout", PROBLEMS)]
    with start_daemon(module, max_running=AT_ONCE, queue_limit=AT_ONCE) as daemon:

        def hash_one(case: str, number: int) -> str:
            body = {"strategy": case, **CASES[case], "seed": number, "problem": problems[number]}
            with Client(daemon.url) as client:
                return hash_run([event for _, event in client.solve(body)])

        found = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for case in CASES:
                hashes = pool.map(hash_one, [case] * PROBLEMS, range(PROBLEMS))
                found[case] = " ".join(hashes)
                print(case, hashlib.sha256(found[case].encode()).hexdigest()[:DIGITS], flush=True)
    return found


def hash_run(run: list[Any]) -> str:
    """The hash of a run, from its events."""
    end = run[-1]
    if not isinstance(end, events.RunFinished):
        raise RuntimeError(f"a run did not finish: {end}")
    result: Mapping[str, Any] = end.result
    logprobs = {e.node: list(e.logprobs) for e in run if isinstance(e, events.StepCompleted)}
    scores = {e.node: list(e.scores) for e in run if isinstance(e, events.NodeScored)}
    nodes = [
        [node["id"], node["parent"], node["status"]]
        if node["status"] == "cancelled"
        else [
            node["id"],
            node["parent"],
            node["status"],
            node["token_ids"],
            logprobs.get(node["id"]),
            scores.get(node["id"]),
        ]
        for node in result["tree"]["nodes"]
    ]
    choices = [result.get(name) for name in CHOICES]
    text = json.dumps([nodes, choices], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def describe_cpu() -> str:
    """What the float results of the real engines depend on."""
    return (
        f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
    )


def _find_differences(was: str, now: str) -> list[int]:
    """The numbers of the problems whose hash is another one."""
    pairs = zip(was.split(), now.split(), strict=True)
    return [number for number, (one, other) in enumerate(pairs) if one != other]


def _count(runs: Mapping[str, str]) -> int:
    return sum(len(hashes.split()) for hashes in runs.values())


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--engines", nargs="+", choices=tuple(ENGINES), default=[*ENGINES])
    return parser.parse_args()


if __name__ == "__main__":
    main()
