"""Chooses the thresholds of MCTS's exits on recorded calibration trees.

    python -m scripts.bench.mcts.choose_thresholds runs/mcts/calibration.jsonl [--max-loss 0.01]

`scripts.bench.mcts.record` makes the trees, whole runs with one rollout at a time and no exit. Each
is played once, and after every turn it is noted what each exit would see and what the run would
answer if it ended there. What a setting does follows from these notes; the chosen ones are played
again with the exits on, and must agree. Held-out problems play no part.

- `accept` (positive exit) and `futile` (strict): of the settings that lose at most `--max-loss`
  of the accuracy, the one that saves most tokens. Also with one value for both, as in the paper.

Prints the candidates, the correlation of a branch's first score with the best reward found in it,
and the share of runs that each exit ends. The last line is JSON.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flashedge.certainty.calibration import bound_loss
from flashedge.search.mcts.exits import Exits
from flashedge.search.mcts.rollouts import MctsState, list_path
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.tree import ROOT, NodeStatus
from flashedge.search.voting import choose_answer
from scripts.bench.daemon import report
from scripts.bench.mcts.exit_replay import RecordedTree, load_trees, replay_search
from scripts.bench.mcts.rig import StateWatch, build_spec
from scripts.bench.pearson import pearson
from scripts.bench.smoke import SMALL, parse_arguments

ACCEPT = (0.5, 0.6, 0.7, 0.75, 0.8, 0.81, 0.82, 0.83, 0.84, 0.85, 0.9)
FUTILE = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the exits see after a turn."""

    tokens: int
    right: bool
    """Whether the run's answer would be right if it ended here."""
    has_path: bool
    """Whether a path has ended."""
    best_reward: float
    best_leaf: float
    """Largest reward of a leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTree:
    """A whole run, turn by turn. The last turn is its end."""

    turns: tuple[Turn, ...]
    last: MctsState

    @property
    def right(self) -> bool:
        return self.turns[-1].right

    def find_end(self, ends: Callable[[Turn], bool]) -> Turn:
        """The first turn at which an exit ends the run, or its own end."""
        return next((t for t in self.turns[:-1] if t.has_path and ends(t)), self.turns[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one setting does on all trees, against whole runs."""

    exits: Exits
    tokens: float
    """Share of the whole runs' tokens."""
    ended: float
    """Share of the runs that the exit ended."""
    lost: int
    """Runs that end wrong and would have ended right."""
    gained: int
    bound: float
    """95 % upper bound of the loss of accuracy."""
    loss: float


def build_mcts(n: int, exits: Exits) -> Mcts:
    spec = build_spec({"problem": "?"}, n=n, seed=0)
    return Mcts(
        n=n,
        branching=spec.branching,
        max_step_tokens=spec.max_step_tokens,
        max_steps=spec.max_steps,
        aggregate=spec.aggregate,
        selection=spec.selection,
        exits=exits,
    )


def play_tree(search: Mcts, tree: RecordedTree) -> PlayedTree:
    watch = StateWatch.of(search)
    found = replay_search(watch, tree)
    by_turn = {state.turn: state for state in reversed(watch.states)}  # the first of each
    turns = [_note_turn(state, tree, search) for _, state in sorted(by_turn.items())]
    turns[-1] = replace(turns[-1], right=found.right)
    return PlayedTree(turns=tuple(turns), last=found.state)


def _note_turn(state: MctsState, tree: RecordedTree, search: Mcts) -> Turn:
    answered = state.tree.set_answers({node: tree.nodes[node].answer for node in state.complete})
    answer = None
    if state.complete:
        answer = choose_answer(
            answered, state.complete, how=search.aggregate, by=search.selection
        ).answer
    best = 0.0
    flying = (NodeStatus.GENERATING, NodeStatus.GENERATED)
    for node in state.tree.nodes.values():
        below = [c for c in state.tree.list_kept(node.id) if c.status not in flying]
        if node.status in (NodeStatus.DUPLICATE, *flying) or below or node.id == ROOT:
            continue
        best = max(best, state.statistics[node.id].reward)
    return Turn(
        tokens=state.taken_tokens,
        right=answer is not None and tree.right[answer],
        has_path=bool(state.complete),
        best_reward=state.best_reward,
        best_leaf=best,
    )


def judge(played: Sequence[PlayedTree], exits: Exits) -> Candidate:
    ends = [run.find_end(lambda turn: _would_end(turn, exits)) for run in played]
    pairs = [(run.right, end.right) for run, end in zip(played, ends, strict=True)]
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    return Candidate(
        exits=exits,
        tokens=sum(end.tokens for end in ends) / sum(run.turns[-1].tokens for run in played),
        ended=sum(end is not run.turns[-1] for run, end in zip(played, ends, strict=True))
        / len(played),
        lost=lost,
        gained=gained,
        bound=bound_loss(lost, gained, len(played)),
        loss=(lost - gained) / len(played),
    )


def _would_end(turn: Turn, exits: Exits) -> bool:
    if exits.positive_exit and turn.best_reward >= exits.accept:
        return True
    return exits.negative_exit and turn.best_leaf < exits.futile


def choose(found: Sequence[Candidate], max_loss: float) -> Candidate | None:
    """The one that saves most tokens within the allowed loss."""
    good = [candidate for candidate in found if candidate.loss <= max_loss]
    return min(good, key=lambda candidate: (candidate.tokens, candidate.lost), default=None)


def confirm(
    chosen: Candidate, played: Sequence[PlayedTree], trees: Sequence[RecordedTree], n: int
) -> None:
    """Play the trees with the exits on. Raises AssertionError if a run ends elsewhere."""
    for run, tree in zip(played, trees, strict=True):
        end = run.find_end(lambda turn: _would_end(turn, chosen.exits))
        found = replay_search(build_mcts(n, chosen.exits), tree)
        assert (found.state.taken_tokens, found.right) == (end.tokens, end.right)


def correlate_first_steps(played: Sequence[PlayedTree]) -> float:
    """Pearson's r of a branch's first score and the largest reward of a path that ended in it."""
    first, best = [], []
    for run in played:
        state = run.last
        for branch in state.tree.children(ROOT):
            ends = [n for n in state.complete if branch.id in list_path(state.tree, n)]
            if ends:
                first.append(state.statistics[branch.id].reward)
                best.append(max(state.statistics[node].reward for node in ends))
    return pearson(first, best)


def show(candidate: Candidate | None) -> Mapping[str, Any] | None:
    return None if candidate is None else asdict(candidate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("trees", type=Path, help="a file of recorded runs")
    parser.add_argument("-n", type=int, default=16, help="rollouts of the recorded runs")
    parser.add_argument("--max-loss", type=float, default=0.01)
    options = parse_arguments(parser, trees=SMALL / "recorded_trees.jsonl")
    trees = load_trees(options.trees)
    played = [play_tree(build_mcts(options.n, Exits()), tree) for tree in trees]
    positive = [judge(played, Exits(positive_exit=True, accept=accept)) for accept in ACCEPT]
    strict = [judge(played, Exits(negative_exit=True, futile=futile)) for futile in FUTILE]
    one = [
        judge(played, Exits(positive_exit=True, negative_exit=True, accept=both, futile=both))
        for both in ACCEPT
    ]
    chosen = {}
    for name, found in (("positive", positive), ("strict", strict), ("one threshold", one)):
        print(f"{name}: accept futile | tokens ended lost gained bound")
        for at in found:
            exits = at.exits
            print(
                f"  {exits.accept:.2f} {exits.futile:.3f} | {at.tokens:.3f} {at.ended:.3f}"
                f" {at.lost} {at.gained} {at.bound:.3f}"
            )
        chosen[name] = choose(found, options.max_loss)
        if (best := chosen[name]) is not None:
            confirm(best, played, trees, options.n)
    report(
        trees=len(trees),
        n=options.n,
        accuracy=sum(run.right for run in played) / len(played),
        tokens=sum(run.turns[-1].tokens for run in played) / len(played),
        first_step_correlation=correlate_first_steps(played),
        chosen={name: show(candidate) for name, candidate in chosen.items()},
    )


if __name__ == "__main__":
    main()
