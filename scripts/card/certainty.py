"""Measures on a card what each kind of certainty saves on recorded answers. See certainty.sh.

Each part is a process (`validate`). Scoring that its minutes cut off counts as failed, the last
part waits for it, and the same command goes on with it. The last part needs no card:
FOLDER/scored-SKIP.jsonl can be judged anywhere.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.card.parts import Part, Plan
from scripts.card.validate import parse_plan, run_parts

WAYS: Mapping[str, Mapping[str, Any]] = {
    "all paths": {"early_exit": False},
    "their confidence measured": {
        "strategy": "deepconf",
        "options": {"stops": False},
        "early_exit": False,
    },
    "default": {"early_exit": True},
    "deepconf": {"strategy": "deepconf", "options": {"window": 64}},
}
"""How problems are solved live. The first two draw the same tokens."""


def list_parts(plan: Plan, asked: argparse.Namespace) -> tuple[Part, ...]:
    small, scored = plan.rehearse, plan.output / f"scored-{asked.skip}.jsonl"
    limit = 6 if small else asked.limit
    ways = {name: {"pair": plan.pair, **way} for name, way in WAYS.items()}
    python = (sys.executable, "-m")
    return (
        Part(
            name="scores",
            question="How sure are the models of the recorded answers?",
            command=(
                *(*python, "scripts.bench.certainty.score", str(asked.samples), str(scored)),
                *("--pair", plan.pair, "--add", "confidences,scores,probes"),
                *("--skip", str(asked.skip), "--limit", str(limit), "--cut", str(asked.cut)),
                *("--minutes", str(asked.minutes), "--at-once", "1" if small else "16"),
            ),
            find_faults=lambda figures: (
                []
                if figures["complete"]
                else [f"only {figures['problems']} problems are scored; call it again to go on"]
            ),
        ),
        Part(
            name="live",
            question="What do confidences cost, and what do live runs take?",
            command=(
                *(*python, "scripts.bench.certainty.live", "--problems", str(plan.problems)),
                *("-n", "8", "--limit", "2" if small else "30", "--rounds", "1" if small else "2"),
                *("--same-seeds", "--ways", json.dumps(ways)),
            ),
        ),
        Part(
            name="votes",
            question="What does each kind of certainty save at equal accuracy?",
            command=(*python, "scripts.bench.certainty.votes", str(scored), "--limit", str(limit)),
            needs="scores",
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=Path, required=True, help="see scripts.bench.certainty")
    parser.add_argument("--skip", type=int, default=0, help="problems, such as those trained on")
    parser.add_argument("--limit", type=int, default=1000, help="problems")
    parser.add_argument("--cut", type=int, default=512, help="tokens at which answers were cut")
    parser.add_argument("--minutes", type=float, default=5.0, help="of scoring, after the start")
    plan = parse_plan(parser, "certainty")
    run_parts(plan, list_parts(plan, parser.parse_args()))


if __name__ == "__main__":
    main()
