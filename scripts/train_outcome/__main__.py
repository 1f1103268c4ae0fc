"""Make and measure the outcome model: `python -m scripts.train_outcome train|measure`."""

import argparse
import asyncio
import json
import time
from pathlib import Path

from flashedge.config import load_config
from flashedge.models.registry import BUNDLED
from scripts.train_outcome.answers import sample_answers
from scripts.train_outcome.measure import report_trials, try_problems
from scripts.train_outcome.model import export_outcome_model, fit_score, read_states
from scripts.train_pair.problems import HELDOUT_SEEDS, STANDARD, make_problems


def run_train(options: argparse.Namespace) -> None:
    """Sample answers, fit the score, write the checkpoint."""
    began = time.monotonic()
    labelled = sample_answers(BUNDLED / "generator", options.problems or 300, seed=options.seed)
    right = [found.right for found in labelled]
    states = read_states(BUNDLED / "prm", labelled)
    export_outcome_model(BUNDLED / "prm", fit_score(states, right), options.model)
    share = sum(map(sum, right)) / sum(map(len, right))
    seconds = time.monotonic() - began
    print(json.dumps({"problems": len(labelled), "right": share, "seconds": round(seconds)}))


def run_measure(options: argparse.Namespace) -> None:
    """Measure best-of-n on held-out problems. The last line is JSON."""
    problems = list(make_problems(HELDOUT_SEEDS, options.problems or 200, STANDARD))
    config = load_config()
    trials = asyncio.run(try_problems(options.model, problems, options.n, config, options.seed))
    print(json.dumps(report_trials(trials)))


COMMANDS = {"train": run_train, "measure": run_measure}


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--model", type=Path, default=Path("runs/train_outcome/model"))
    parser.add_argument("--problems", type=int, help="train: 300, measure: 200")
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
