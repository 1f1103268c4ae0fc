"""Figures that follow from a run's view: scores by level, votes, MCTS statistics, work left."""

import math
from collections import Counter
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from flashedge.client.event_line import ScoreTally
from flashedge.client.run_view import ROOT, NodeView, RunView
from flashedge.client.words import explain_no_answer, format_count, list_doubts
from flashedge.types import NodeId, Vote

MIN_ROLLOUTS = 3
"""Rollouts after which the time left is estimated: the rate of one or two says too little."""


def tally_levels(view: RunView) -> tuple[ScoreTally, ...]:
    """Sum up the path scores of each level that has any, by depth. Duplicates don't count."""
    levels: dict[int, list[float]] = {}
    for node in view.nodes.values():
        if node.score is not None and node.status != "duplicate":
            levels.setdefault(node.depth, []).append(node.score)
    return tuple(ScoreTally(at, len(s), max(s), math.fsum(s)) for at, s in sorted(levels.items()))


def collect_votes(view: RunView) -> tuple[Vote, ...]:
    """Collect the run's votes, largest share first. Before the result, answers count as equal only
    if they are spelled the same. The result also groups answers that are mathematically equal, so
    its counts may be larger."""
    if view.result is not None:
        votes = [
            Vote(answer=str(v["answer"]), weight=float(v["weight"]), count=int(v["count"]))
            for v in view.result.get("votes") or ()
        ]
    else:
        counts: Counter[str] = Counter()
        weights: dict[str, float] = {}
        for node in view.nodes.values():
            if node.ends_path and node.answer is not None:
                counts[node.answer] += 1
                weights[node.answer] = weights.get(node.answer, 0.0) + (node.score or 0.0)
        votes = [Vote(answer=a, weight=weights[a], count=c) for a, c in counts.items()]
    order = ("weight", "count") if _votes_by_weight(view) else ("count", "weight")
    return tuple(sorted(votes, key=attrgetter(*order), reverse=True))


def compute_vote_shares(view: RunView) -> tuple[tuple[Vote, float], ...]:
    """Pair each vote with its share in [0, 1]: of the weights if they decide the vote and are not
    all 0, else of the paths."""
    votes = collect_votes(view)
    by_weight = _votes_by_weight(view) and any(v.weight > 0 for v in votes)
    sizes = [v.weight if by_weight else float(v.count) for v in votes]
    total = math.fsum(sizes) or 1.0
    return tuple((vote, size / total) for vote, size in zip(votes, sizes, strict=True))


def find_answer(view: RunView) -> str | None:
    """The run's answer. Before its result: the answer that it would give if it ended now."""
    if view.result is not None:
        answer = view.result.get("answer")
        return None if answer is None else str(answer)
    if view.config.get("selection") == "best":
        ended = [n for n in view.nodes.values() if n.ends_path and n.answer is not None]
        return max(ended, key=lambda n: n.score or 0.0).answer if ended else None
    votes = collect_votes(view)
    return votes[0].answer if votes else None


def list_warnings(view: RunView) -> tuple[str, ...]:
    """Say why a run that is over has no answer, or what speaks against its answer. The most
    important warning comes first."""
    if not view.over:
        return ()
    if view.result is None:
        if not view.config and view.state != "failed":
            return (f"{view.state} before it started",)
        return (f"{view.state}: {view.note}" if view.note else view.state,)
    if find_answer(view) is None:
        return (explain_no_answer(view.result)[0],)
    best = None if view.best is None else view.nodes[view.best].score
    warnings = list_doubts(view.result, best)
    if cut := view.paths_cut:
        of = format_count(view.paths_done, "path")
        warnings.append(f"{cut} of {of} reached a token limit before an answer.")
    if cut_by := view.result.get("cut_by"):
        warnings.append(f"The run was stopped early by its {cut_by}.".replace("_", " "))
    return tuple(warnings)


def _votes_by_weight(view: RunView) -> bool:
    return bool(view.config.get("selection", "weighted") == "weighted")


def is_mcts(view: RunView) -> bool:
    return view.config.get("strategy") == "mcts"


def compute_rollout_values(view: RunView) -> Mapping[NodeId, tuple[int, float]]:
    """Compute (visits, mean value) of each node that a rollout passed through, the root included.
    A rollout's value is the score of the node in which it ended."""
    visits: Counter[NodeId] = Counter()
    totals: dict[NodeId, float] = {}
    for end in view.rollouts:
        value = view.nodes[end].score if end in view.nodes else None
        for node in (ROOT, *view.path(end)):
            visits[node] += 1
            totals[node] = totals.get(node, 0.0) + (value or 0.0)
    return {node: (count, totals[node] / count) for node, count in visits.items()}


def compute_child_priors(view: RunView, parent: NodeId) -> Mapping[NodeId, float]:
    """Compute the MCTS prior of each child, except duplicates and cancelled ones. Empty while any
    of the others still generates."""
    nodes = (view.nodes[child] for child in view.children.get(parent, ()))
    children = [c for c in nodes if c.status not in ("duplicate", "cancelled")]
    if not children or any(not c.finish for c in children):
        return {}
    if (view.config.get("options") or {}).get("prior") == "uniform":
        return {c.id: 1 / len(children) for c in children}
    top = max(c.mean_logprob for c in children)
    sizes = {c.id: math.exp(c.mean_logprob - top) for c in children}
    total = math.fsum(sizes.values())
    return {node: size / total for node, size in sizes.items()}


def count_flights(view: RunView) -> Mapping[NodeId, int]:
    """Count the rollouts in flight whose path goes through each node, the root included."""
    return Counter(at for _, node in view.flights for at in (ROOT, *view.path(node)))


class MctsFigures:
    """The statistics of a tree's nodes, computed once for all lines that show them."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._values, self._flying = compute_rollout_values(view), count_flights(view)
        self._priors: dict[NodeId, Mapping[NodeId, float]] = {}

    def describe(self, node: NodeView) -> str:
        """`N3+2 Q 0.83 P 0.25`: 3 visits and 2 rollouts in flight, the mean value (the node's score
        before its first visit), and the prior."""
        assert node.parent is not None, "the root has no figures"
        if node.parent not in self._priors:
            self._priors[node.parent] = compute_child_priors(self._view, node.parent)
        visits, value = self._values.get(node.id, (0, node.score))
        count = f"{visits}+{self._flying[node.id]}" if node.id in self._flying else f"{visits}"
        prior = self._priors[node.parent].get(node.id)
        shown = (
            f"{name}  -  " if x is None else f"{name} {x:.2f}"
            for name, x in zip("QP", (value, prior), strict=True)
        )
        return " ".join((f"N{count:<2}", *shown))


def count_wanted_paths(view: RunView) -> int | None:
    """Count the paths that the run aims for, or the rollouts of MCTS. None for `probed_cot`, which
    has one path."""
    n = view.config.get("n")
    return n if isinstance(n, int) and view.config.get("strategy") != "probed_cot" else None


def count_rollouts(view: RunView) -> int:
    """Count the rollouts that have ended, those cut as futile included."""
    return len(view.rollouts) + view.futile_rollouts


def describe_progress(view: RunView) -> str:
    """`level 7 · 3/16 paths`, or for MCTS `5/12 rollouts · ` and what `describe_flights` says."""
    n = count_wanted_paths(view)
    if is_mcts(view):
        parts = [f"{count_rollouts(view)}/{n} rollouts", describe_flights(view)]
        return " · ".join(part for part in parts if part)
    of = f"{view.paths_done}/{n} paths" if n is not None else f"{view.paths_done} paths"
    draws_whole = view.config.get("strategy") in ("best_of_n", "self_consistency", "deepconf")
    return of if draws_whole and view.level <= 1 else f"level {view.level} · {of}"


def describe_flights(view: RunView) -> str:
    """`3 in flight, P 4/8`: 3 rollouts are in flight; the run may have 4, all boosted runs together
    8. Once the run is over: `2 boosts, 1 rollout cancelled`."""
    parts = []
    if view.over:
        if view.boosts:
            parts.append(format_count(view.boosts, "boost"))
        if view.cancelled_rollouts:
            parts.append(f"{format_count(view.cancelled_rollouts, 'rollout')} cancelled")
        return ", ".join(parts)
    if view.flights:
        parts.append(f"{len(view.flights)} in flight")
    if view.allowed is not None:
        rollouts, of = view.allowed
        parts.append(f"P {rollouts}/{of}" if of else f"P {rollouts}")
    return ", ".join(parts)


def describe_rest(view: RunView, elapsed_s: float | None) -> str | None:
    """`about 12 s left` from the rate of an MCTS run's rollouts, else `at most 12 s left` from the
    deadline. None where neither is known: nobody can tell how many levels a beam still needs."""
    if elapsed_s is None or view.state != "running":
        return None
    n, done = count_wanted_paths(view), count_rollouts(view)
    if is_mcts(view) and n and done >= MIN_ROLLOUTS:
        return f"about {format_seconds(elapsed_s / done * max(n - done, 0))} left"
    deadline = view.config.get("deadline_s")
    if isinstance(deadline, int | float):
        return f"at most {format_seconds(max(deadline - elapsed_s, 0))} left"
    return None


def format_seconds(seconds: float) -> str:
    """`8.3 s`, `42 s` or `3:07`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def find_thresholds(config: Mapping[str, Any]) -> Mapping[str, float]:
    """The certainty at which the run stops early, by measure. Empty if certainty never stops it."""
    return (config.get("early_exit") or {}).get("thresholds") or {}
