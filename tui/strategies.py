"""The strategies that the submit dialog offers. A test keeps them equal to the search catalog."""

from __future__ import annotations

from collections.abc import Mapping

STRATEGIES: Mapping[str, str] = {
    "beam": "step by step, the best paths go on",
    "best_of_n": "n whole answers, weighed by the verifier",
    "self_consistency": "n whole answers, the most frequent one wins",
    "dvts": "subtrees, each keeps its best path",
    "dynamic_branching": "a beam that branches more below high scores",
    "varying_granularity": "a beam of short steps first, long ones later",
    "rebase": "rewards decide how many children a path gets",
    "mcts": "n rollouts of Monte Carlo tree search",
    "probed_cot": "one chain, asked for its answer as it grows",
}
