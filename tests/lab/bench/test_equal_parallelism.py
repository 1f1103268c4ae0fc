"""The study of equal parallelism: the paper's beam, and that one M bounds every variant."""

from dataclasses import replace

from flashedge.runtime.request.validation import Request
from flashedge.scheduling.rollouts.allocation import Allocator, RolloutCandidate
from flashedge.scheduling.rollouts.limiter import IDLE, RolloutLimiter
from flashedge.search.mcts.exits import REWARD
from flashedge.search.tree import ROOT, NodeStatus
from scripts.bench.mcts.equal_parallelism import PAPER_JOBS, list_trials
from scripts.bench.mcts.paper_beam import KEPT, build_paper_beam
from tests.support.search_rig import PROBLEM, drive
from tests.unit.search.test_mcts_exits import Indices, Planned

SPEC = Request(problem=PROBLEM, pair="bundled", strategy="beam", branching=4)
RUN = RolloutCandidate(key="a", arrived_s=0.0, branching=4, most=16, observed=1)


def score(path: Indices) -> float:
    """The higher the last index, the better."""
    return 0.5 + 0.1 * min(path[-1], 3)


def test_the_papers_beam_keeps_eight_and_draws_four_of_each() -> None:
    found = drive(build_paper_beam(SPEC), world=Planned(score=score))
    tree = found.states[-1].tree
    first = tree.children(ROOT)
    kept = [node for node in first if tree.children(node.id)]
    assert (len(first), len(kept)) == (KEPT * 4, KEPT)
    assert all(len(tree.children(node.id)) == 4 for node in kept)
    assert found.end.cut_by is None


def test_the_papers_beam_ends_with_a_good_path() -> None:
    found = drive(build_paper_beam(SPEC, accept=0.5), world=Planned(score=score))
    best = found.states[-1].tree[found.end.choice]
    assert (found.end.cut_by, best.status) == (REWARD, NodeStatus.COMPLETE)


def test_one_bound_holds_for_searches_and_rollouts() -> None:
    trials = list_trials(5)
    runs = [replace(RUN, key=str(i)) for i in range(3)]
    for name, trial in trials.items():
        assert trial.jobs == (PAPER_JOBS if name == "paper's beam" else 5), name
        if trial.variant.boost is not None:
            limiter: RolloutLimiter = trial.variant.boost.limiter
            assert limiter.limit(runs, Allocator(), IDLE, None).budget <= 5, name
