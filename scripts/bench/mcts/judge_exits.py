"""Judges the chosen exits of MCTS on held-out trees: each run that an exit ends is gone on with.

    python -m scripts.bench.mcts.judge_exits runs/mcts/heldout.jsonl

`scripts.bench.mcts.record` makes the trees, whole runs of 16 rollouts without exits. So it is known
of each run that an exit ends what it would have answered at its own end. `lost` counts those that
would have been right and are wrong, `gained` the opposite. The thresholds are the defaults of the
product, chosen on calibration problems (`choose_thresholds`). Cut rollouts leave the recorded tree;
`real_load` and `equal_parallelism` measure them. The last line is JSON.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashedge.search.mcts.exits import Exits
from scripts.bench.daemon import report
from scripts.bench.mcts.choose_thresholds import (
    PlayedTree,
    build_mcts,
    confirm,
    correlate_first_steps,
    judge,
    play_tree,
)
from scripts.bench.mcts.exit_replay import RecordedTree, load_trees, replay_search
from scripts.bench.smoke import SMALL, parse_arguments
from scripts.lab.statistics import bootstrap, mean

ACCEPT = Exits().accept
EXITS: Mapping[str, Exits] = {
    "positive": Exits(positive_exit=True),
    "strict": Exits(negative_exit=True),
    "positive and strict": Exits(positive_exit=True, negative_exit=True),
    "one threshold, strict": Exits(negative_exit=True, futile=ACCEPT),
    "one threshold": Exits(positive_exit=True, negative_exit=True, futile=ACCEPT),
}
"""With one threshold a leaf is futile that can no longer be accepted (arXiv 2604.00510 §3.4)."""


def count_given_up(
    exits: Exits, played: Sequence[PlayedTree], trees: Sequence[RecordedTree], n: int
) -> dict[str, int]:
    """Runs that give up; those of them that end right, and that would have ended right."""
    search = build_mcts(n, exits)
    ends = [(run, replay_search(search, tree)) for run, tree in zip(played, trees, strict=True)]
    given_up = [(run, end) for run, end in ends if end.state.gave_up]
    return {
        "given_up": len(given_up),
        "given_up_right": sum(end.right for _, end in given_up),
        "would_have_been_right": sum(run.right for run, _ in given_up),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", type=Path, help="a file of recorded runs")
    parser.add_argument("-n", type=int, default=16, help="rollouts of the recorded runs")
    options = parse_arguments(parser, trees=SMALL / "recorded_trees.jsonl")
    trees = load_trees(options.trees)
    played = [play_tree(build_mcts(options.n, Exits()), tree) for tree in trees]
    figures: dict[str, Any] = {}
    print("exits: tokens ended lost gained bound | given up, right, would have been right")
    for name, exits in EXITS.items():
        found = judge(played, exits)
        confirm(found, played, trees, options.n)
        counts = count_given_up(exits, played, trees, options.n)
        figures[name] = {**asdict(found), **counts}
        print(
            f"{name}: {found.tokens:.3f} {found.ended:.3f} {found.lost} {found.gained}"
            f" {found.bound:.3f} | {' '.join(map(str, counts.values()))}"
        )
    right = [float(run.right) for run in played]
    report(
        trees=len(trees),
        accuracy=[mean(right), *bootstrap(right, mean)],
        tokens=mean([run.turns[-1].tokens for run in played]),
        first_step_correlation=correlate_first_steps(played),
        exits=figures,
    )


if __name__ == "__main__":
    main()
