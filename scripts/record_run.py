"""Record a run as a client sees it, for the dashboard's tests and pictures.

python -m scripts.record_run tests/data/recorded_mcts.json --strategy mcts -n 12 --problem "…"
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from flashedge import events
from flashedge.cli.connection import connect_ready
from flashedge.config import load_config

DIGITS = 4  # of log-probabilities, to keep the files small


def main() -> None:
    options = parse_options()
    body = {"problem": options.problem, "strategy": options.strategy, "n": options.n}
    body |= {"seed": options.seed, "early_exit": False, "options": options.options}
    lines: list[str] = []
    with connect_ready(load_config({})) as client:
        began = time.perf_counter()
        for number, event in client.solve(body):
            if not isinstance(event, events.TERMINAL) and not number:
                continue  # its place in the queue
            data = slim_down(events.to_json(event))
            lines.append(json.dumps([number, round(time.perf_counter() - began, 3), data]))
        result = data["result"]
        summary = next(run for run in client.runs()["data"] if run["id"] == result["id"])
    note = f"A {options.strategy} run of pair {summary['pair']}, recorded as a client saw it: "
    note += "[number, seconds, event]. Log-probabilities are rounded; the result's token ids are "
    note += "left off."
    head = f'{{"note": {json.dumps(note)}, "summary": {json.dumps(summary)}, "events": [\n'
    options.out.write_text(head + ",\n".join(lines) + "\n]}\n")


def slim_down(event: dict[str, Any]) -> dict[str, Any]:
    """The event without what no picture shows."""
    if "logprobs" in event:
        event["logprobs"] = [round(value, DIGITS) for value in event["logprobs"]]
    if "result" in event:
        result = dict(event["result"])
        result["tree"] = {
            **result["tree"],
            "nodes": [without_token_ids(n) for n in result["tree"]["nodes"]],
        }
        result["completions"] = [without_token_ids(c) for c in result["completions"]]
        event["result"] = result
    return event


def without_token_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "token_ids"}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--strategy", default="beam")
    parser.add_argument("-n", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problem", required=True)
    parser.add_argument("--options", type=json.loads, default={}, help="of the strategy, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
