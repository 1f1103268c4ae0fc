"""Trains a verifier on a card by `python -m scripts.train_prm all`. See train_prm.sh."""

import os
import sys

from flashedge.engine.platform import runs_on_cpu
from flashedge.models.registry import BUNDLED
from scripts.bench.daemon import DATA

REHEARSAL = {
    "--generator": BUNDLED / "generator",
    "--work": "runs/train-prm-rehearsal",
    "--train-problems": DATA / "calibration.jsonl",
    "--problems": DATA / "heldout.jsonl",
    "--limit": 20,
    "--solution-tokens": 400,
    "--system-prompt": "",
    "--calibrate": 4,
    "--epochs": 2,
}


def main() -> None:
    asked = sys.argv[1:]
    if "--rehearse" in asked:
        rest = [each for each in asked if each != "--rehearse"]
        asked = [*(str(each) for pair in REHEARSAL.items() for each in pair), *rest]
    elif runs_on_cpu():
        sys.exit("this machine has no card; --rehearse runs every part on the CPU")
    command = [sys.executable, "-m", "scripts.train_prm", "all", *asked]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
