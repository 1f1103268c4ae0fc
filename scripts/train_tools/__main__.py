"""Make and measure the pair that calls tools: `python -m scripts.train_tools COMMAND`.

Every command continues an earlier, interrupted call.
"""

import argparse
import json
from pathlib import Path

import torch

from scripts.train_tools.measure import measure, measure_known
from scripts.train_tools.model import (
    export_tool_pair,
    fit_tool_verifier,
    train_tool_generator,
    train_tool_trunk,
)
from scripts.train_tools.tasks import HELDOUT_SEEDS, make_tasks

TASKS = Path("tests/data/tool_calls.jsonl")


def run_tasks(options: argparse.Namespace) -> None:
    """Write the held-out tasks."""
    tasks = make_tasks(HELDOUT_SEEDS, options.tasks)
    TASKS.write_text("".join(json.dumps(task.to_json()) + "\n" for task in tasks))


def run_trunk(options: argparse.Namespace) -> None:
    """Train the verifier's trunk."""
    train_tool_trunk(options.work, seed=options.seed)


def run_generator(options: argparse.Namespace) -> None:
    """Train the bundled generator on."""
    train_tool_generator(options.work, seed=options.seed)


def run_export(options: argparse.Namespace) -> None:
    """Fit the verifier and write both models as Hugging Face folders."""
    torch.manual_seed(options.seed)
    generator = train_tool_generator(options.work, seed=options.seed)
    trunk = train_tool_trunk(options.work, seed=options.seed)
    verifier = fit_tool_verifier(trunk, generator, seed=options.seed)
    export_tool_pair(generator, verifier, options.work / "model")


def run_measure(options: argparse.Namespace) -> None:
    """Ask a daemon for the calls of the held-out tasks. The last line is JSON."""
    tasks = [json.loads(line) for line in TASKS.read_text().splitlines()[: options.tasks]]
    if options.pair:
        found = measure_known(options.pair, tasks, required=options.required)
    else:
        found = measure(options.work / "model", tasks)
    print(json.dumps(found))


COMMANDS = {
    "tasks": run_tasks,
    "trunk": run_trunk,
    "generator": run_generator,
    "export": run_export,
    "measure": run_measure,
}


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="\n".join(f"{name:9} {run.__doc__}" for name, run in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--work", type=Path, default=Path("runs/train_tools"))
    parser.add_argument("--tasks", type=int, default=240, help="held-out tasks")
    parser.add_argument("--pair", help="measure this pair of models.toml, not the trained one")
    parser.add_argument("--required", action="store_true", help="that pair must call at once")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
