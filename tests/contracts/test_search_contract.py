"""The contract of every search algorithm. See `flashedge.search.base`."""

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from flashedge.certainty.policies import Policy, Rule
from flashedge.search.base import (
    Cluster,
    Clustered,
    Expand,
    Finish,
    Generated,
    Lookahead,
    ProbeResult,
    Score,
    Scored,
    Watch,
)
from flashedge.search.strategies.beam import (
    BeamSearch,
    Dvts,
    DynamicBranching,
    Rebase,
    VaryingGranularity,
)
from flashedge.search.strategies.best_of_n import BestOfN, SelfConsistency
from flashedge.search.strategies.counted_vote import CountedBestOfN, CountedSelfConsistency
from flashedge.search.strategies.deepconf import DeepConf
from flashedge.search.strategies.mcts import Mcts
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.strategies.program import ProgramSearch
from flashedge.search.tree import ROOT, NodeStatus, Tree, child_seed
from flashedge.search.voting import Search
from flashedge.types import STRATEGIES, FinishReason, Limits, NodeId
from tests.support.search_rig import LIMITS, PROBLEM, Run, World, drive, make_segment


class Halves:
    def execute(self, tree: Tree, paths: Sequence[NodeId], width: int) -> Mapping[NodeId, int]:
        kept = paths[: -(-len(paths) // 2)]
        each = width // len(kept)
        return dict.fromkeys(kept, each) | {kept[0]: width - each * (len(kept) - 1)}

    def update_certainindex(self, tree: Tree, finished: Sequence[NodeId]) -> float | None:
        return 0.25


def watching(policy: str = "every_step") -> Policy:
    return Rule(policy=policy, detect=1, thresholds=(("entropy", 2.0),))


def by_lead(detect: int, least: float) -> Policy:
    return Rule(policy="lead", detect=detect, thresholds=(("lead", least),))


SHORT = {"max_step_tokens": 5, "max_steps": 4}
SEARCHES: dict[str, Search[Any]] = {
    "best_of_n": BestOfN(n=5),
    "best_of_1": BestOfN(n=1, selection="best", aggregate="min"),
    "beam": BeamSearch(n=8, branching=3, **SHORT),
    "beam_of_1": BeamSearch(n=1, branching=1, max_step_tokens=4, max_steps=3),
    "beam_one_step": BeamSearch(n=4, max_steps=1, selection="majority"),
    "beam_wide": BeamSearch(n=6, branching=8, max_step_tokens=30, max_steps=9, aggregate="prod"),
    "beam_watched": BeamSearch(n=8, branching=3, **SHORT, policy=watching()),
    "best_of_n_in_groups": BestOfN(n=5, policy=watching("every_5")),
    "self_consistency": SelfConsistency(n=6),
    "self_consistency_one_by_one": SelfConsistency(n=6, policy=watching()),
    "deepconf": DeepConf(n=7, window=3, keep=0.5),
    "deepconf_watched": DeepConf(n=8, warm_up=2, window=4, keep=0.9, policy=watching()),
    "deepconf_of_whole_paths": DeepConf(n=6, keep=0.4, by="tail", window=2),
    "dvts": Dvts(n=8, branching=3, **SHORT),
    "dvts_of_1": Dvts(n=4, branching=1, **SHORT, policy=watching()),
    "dynamic_branching": DynamicBranching(n=9, branching=3, **SHORT),
    "varying_granularity": VaryingGranularity(
        n=6, branching=2, short_steps=2, short_step_tokens=3, long_step_tokens=20, max_steps=5
    ),
    "rebase": Rebase(n=9, max_step_tokens=5, max_steps=4, policy=watching("static")),
    "rebase_greedy": Rebase(n=5, max_step_tokens=5, max_steps=5, temperature=0.01),
    "rebase_in_trees": Rebase(n=8, width=3, max_step_tokens=5, max_steps=4),
    "rebase_in_trees_watched": Rebase(n=8, width=3, **SHORT, policy=watching("every_5")),
    "mcts": Mcts(n=5, branching=3, **SHORT, aggregate="prod"),
    "mcts_watched": Mcts(n=6, branching=2, **SHORT, prior="uniform", policy=watching()),
    "mcts_watched_now_and_then": Mcts(n=7, branching=3, **SHORT, policy=watching("every_5")),
    "mcts_parallel": Mcts(n=8, branching=3, **SHORT, aggregate="prod", parallel=4),
    "mcts_parallel_watched": Mcts(
        n=9, branching=2, max_step_tokens=5, max_steps=5, policy=watching("every_5"), parallel=3
    ),
    "probed_cot": ProbedCot(probe_tokens=6),
    "probed_cot_waiting": ProbedCot(probe_tokens=6, beside=False, tv_epsilon=0.5),
    "probed_cot_unprobed": ProbedCot(probe_tokens=0),
    "program": ProgramSearch(program=Halves(), name="halves", n=6, **SHORT, policy=watching()),
}
COUNTED: dict[str, Search[Any]] = {
    "self_consistency_counted": CountedSelfConsistency(n=9, policy=by_lead(3, 0.96)),
    "best_of_n_counted": CountedBestOfN(n=7, policy=by_lead(2, 0.9)),
    "best_of_n_counted_longer": CountedBestOfN(n=12, policy=by_lead(4, 0.999)),
}
SILENT = {"self_consistency", "deepconf", "probed_cot"}
WORLDS = [World(seed) for seed in range(6)]
ENDED = {NodeStatus.COMPLETE, NodeStatus.PRUNED, NodeStatus.DUPLICATE}
SEGMENT = make_segment("a", tokens=(1,), finish=FinishReason.BOUNDARY)

every_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
_ALL = SEARCHES | COUNTED
with_counted = pytest.mark.parametrize("search", _ALL.values(), ids=_ALL.keys())


def complete(tree: Tree) -> list[NodeId]:
    return [n.id for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]


def check_complete(search: Search[Any], run: Run) -> None:
    done = complete(run.tree)
    if isinstance(search, Mcts):
        state = run.states[-1]
        assert set(state.rollouts) <= set(done)
        assert len(set(state.rollouts)) == len(state.rollouts)
        assert len(state.rollouts) == search.n or state.statistics[ROOT].is_closed
    else:
        assert len(done) == search.n


@every_search
def test_completes_exactly_n_paths(search: Search[Any]) -> None:
    """Its leaves ended, were pruned or are duplicates, and its inner nodes are active."""
    for world in WORLDS:
        run = drive(search, world=world)
        check_complete(search, run)
        tree = run.tree
        assert run.end.choice in complete(tree)
        assert sum(v.count for v in run.end.votes) <= len(complete(tree))
        assert run.end.cut_by is None
        for node in tree.nodes.values():
            inner = bool(tree.children(node.id))
            assert (node.status is NodeStatus.ACTIVE) if inner else (node.status in ENDED)
            assert node.id == ROOT or (node.scores is None) == (search.name in SILENT)


@with_counted
def test_seeds_are_those_of_the_path(search: Search[Any]) -> None:
    assert search.name in {*STRATEGIES, "halves"}
    run = drive(search, seed=11)
    assert run.tree[ROOT].seed == 11
    for node in run.tree.nodes.values():
        if node.parent is not None:
            above = run.tree[node.parent]
            assert node.seed == child_seed(above.seed, above.depth, node.index)
    asked = {c.node: c.seed for e in run.commands if isinstance(e, Expand) for c in e.children}
    assert asked == {n.id: n.seed for n in run.tree.nodes.values() if n.id != ROOT}


@with_counted
def test_order_of_arrival_never_matters(search: Search[Any]) -> None:
    for world in WORLDS:
        first, *others = (list_decided(search, world, Random(i)) for i in range(4))
        assert all(other == first for other in others)


def list_decided(search: Search[Any], world: World, order: Random) -> tuple[Any, ...]:
    """The tree, the nodes that are scored, and all commands but Score and Watch, which depend on
    what has arrived."""
    run = drive(search, world=world, order=order)
    scored = sorted(node for c in run.commands if isinstance(c, Score) for node in c.nodes)
    return run.tree, scored, [c for c in run.commands if not isinstance(c, Score | Watch)]


@with_counted
def test_a_repeated_result_changes_nothing(search: Search[Any]) -> None:
    for world in WORLDS:
        state, commands = search.start(PROBLEM, 5, LIMITS)
        pending = world.results(state.tree, commands)
        for count, result in enumerate(pending, start=1):  # which grows
            state, commands = search.tell(state, result)
            pending += world.results(state.tree, commands)
            for old in pending[max(0, count - 20) : count]:
                assert search.tell(state, old) == (state, ())
        assert isinstance(commands[-1], Finish)


@with_counted
def test_results_that_no_command_asked_for_change_nothing(search: Search[Any]) -> None:
    def watch(state: Any) -> None:
        known = [n for n in state.tree.nodes.values() if n.id != ROOT]
        unexpected = [
            Generated(node=NodeId(10_000), segment=SEGMENT),
            Generated(node=NodeId(-1), segment=SEGMENT),
            Generated(node=ROOT, segment=SEGMENT),
            Scored(node=ROOT, scores=(0.5,)),
            Scored(node=NodeId(10_000), scores=(0.5,)),
            Clustered(answers={}),
            ProbeResult(node=ROOT, text="7}"),
            ProbeResult(node=NodeId(10_000), text="7}"),
            Clustered(answers={NodeId(10_000): "1"}),
            *(Generated(node=n.id, segment=SEGMENT) for n in known if n.segment),
            *(Scored(node=n.id, scores=(0.5,)) for n in known if n.scores or not n.segment),
        ]
        growing = {n.parent for n in known if n.status is NodeStatus.GENERATING}
        if not isinstance(search, Mcts) and growing:
            growing = {n.parent for n in known}
        unexpected += [  # no command asks for their scores yet
            Scored(node=n.id, scores=(0.5,) * len(n.segment.steps))
            for n in known
            if n.segment and n.parent in growing
        ]
        for result in unexpected:
            assert search.tell(state, result) == (state, ())

    drive(search, watch=watch)


@every_search
def test_scores_that_do_not_fit_are_refused(search: Search[Any]) -> None:
    state, commands = search.start(PROBLEM, 5, LIMITS)
    for result in World().results(state.tree, commands):
        state, commands = search.tell(state, result)
    if search.name in SILENT:
        pytest.skip("has no scores")
    assert isinstance(commands[0], Score)
    node = commands[0].nodes[0]
    segment = state.tree[node].segment
    before = copy.deepcopy(state)
    for scores in ((), (0.5,) * (len(segment.steps) + 1), (float("nan"),) * len(segment.steps)):
        with pytest.raises(ValueError, match="steps"):
            search.tell(state, Scored(node=node, scores=scores))
    assert state == before


@with_counted
def test_states_are_never_mutated(search: Search[Any]) -> None:
    kept: list[Any] = []
    run = drive(search, watch=lambda state: kept.append(copy.deepcopy(state)))
    assert run.states == kept


@every_search
def test_paths_fit_their_limits(search: Search[Any]) -> None:
    for world in WORLDS:
        run = drive(search, world=world, limits=Limits(max_path_tokens=11))
        for command in run.commands:
            if isinstance(command, Expand):
                used = len(run.tree.path_token_ids(command.parent))
                assert 0 < command.granularity.max_tokens <= 11 - used
        check_complete(search, run)


@every_search
def test_lookahead_is_what_happens_to_a_kept_node(search: Search[Any]) -> None:
    for world in WORLDS:
        early: dict[NodeId, Lookahead] = {}
        late: dict[NodeId, Lookahead] = {}

        def watch(
            state: Any, early: dict[NodeId, Lookahead] = early, late: dict[NodeId, Lookahead] = late
        ) -> None:
            for node in state.tree.nodes.values():
                if node.status is NodeStatus.GENERATING:
                    early.setdefault(node.id, search.look_ahead(state, node.id))
                elif node.status is NodeStatus.GENERATED:
                    late[node.id] = search.look_ahead(state, node.id)

        run = drive(search, world=world, watch=watch)
        expands = [c for c in run.commands if isinstance(c, Expand)]
        expanded = {c.parent: c for c in reversed(expands)}  # the first of each
        for node, ahead in late.items():
            assert (not ahead.seeds) == (run.tree[node].status is NodeStatus.COMPLETE)
            if node in expanded:
                then = expanded[node]
                seeds = tuple(c.seed for c in then.children)
                both = min(len(seeds), len(ahead.seeds))
                level = [n for n in run.tree.nodes.values() if n.depth == run.tree[node].depth + 1]
                assert len(ahead.seeds) <= len(level)  # the most that the search could give
                assert ahead.granularity == then.granularity
                assert ahead.seeds[:both] == seeds[:both]
                assert early[node].seeds[:both] == seeds[:both]
                assert early[node].granularity.max_tokens >= then.granularity.max_tokens
                assert early[node].granularity.to_end == then.granularity.to_end
        first = search.look_ahead(run.states[0], ROOT)
        assert first.granularity == expanded[ROOT].granularity
        seeds = tuple(c.seed for e in expands if e.parent == ROOT for c in e.children)
        both = min(len(seeds), len(first.seeds))
        assert both >= len(expanded[ROOT].children)
        assert first.seeds[:both] == seeds[:both]
        with pytest.raises(KeyError):
            search.look_ahead(run.states[-1], NodeId(10_000))


@with_counted
def test_conclude_at_any_moment_ends_the_search(search: Search[Any]) -> None:
    for world in WORLDS[:3]:
        whole = len(drive(search, world=world).results)
        for moment in range(whole):
            check_concluded(search, drive(search, world=world, stop_after=moment))


def check_concluded(search: Search[Any], run: Run) -> None:
    tree, finish = run.tree, run.end
    moving = {NodeStatus.GENERATING, NodeStatus.GENERATED}
    assert not [n for n in tree.nodes.values() if n.status in moving]
    made = [n for n in tree.nodes.values() if n.segment is not None]
    if not made:
        assert finish == Finish(choice=ROOT, answer=None, votes=())
    else:
        assert tree[finish.choice].segment is not None
        done = complete(tree)
        assert not done or finish.choice in done
        asked = [c for c in run.commands if isinstance(c, Cluster)]
        assert asked[-1].nodes == (tuple(done) or (finish.choice,))
    last = run.states[-1]
    assert search.conclude(last) == (last, ())
    for result in run.left:
        assert search.tell(last, result) == (last, ())
