"""Every strategy and policy under random inputs: widths, subtrees, visits, monotone policies."""

import math
from collections import Counter
from itertools import permutations
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flashedge.answers.pairwise import group_by_first_match, measure_likeness
from flashedge.certainty import measures
from flashedge.certainty.policies import POLICIES, GiveUp, Policy, Rule
from flashedge.search.aggregates import AGGREGATES, aggregate
from flashedge.search.base import Expand, Probe, Score
from flashedge.search.level import apportion
from flashedge.search.strategies.beam import BeamSearch, Dvts, DynamicBranching, Rebase
from flashedge.search.strategies.best_of_n import SelfConsistency
from flashedge.search.strategies.probed_cot import ProbedCot
from flashedge.search.tree import ROOT, NodeStatus, Tree
from flashedge.types import Limits, NodeId
from tests.support.search_rig import Run, World, drive

unit = st.floats(0, 1).map(lambda x: round(x, 2))
worlds = st.integers(0, 1000).map(World)
orders = st.integers(0, 1000).map(Random)
budgets = st.builds(
    Limits, max_path_tokens=st.integers(1, 40), token_budget=st.none() | st.integers(1, 200)
)
stepping = {
    "n": st.integers(1, 12),
    "branching": st.integers(1, 6),
    "max_step_tokens": st.integers(1, 10),
    "max_steps": st.integers(1, 6),
    "aggregate": st.sampled_from(AGGREGATES),
}
plain = st.builds(
    Rule,
    policy=st.sampled_from(POLICIES),
    detect=st.integers(1, 9),
    thresholds=st.tuples(st.tuples(st.just("entropy"), unit)),
)
policies: st.SearchStrategy[Policy] = plain | st.builds(
    GiveUp, policy=plain, after=st.integers(1, 9), below=unit, measure=st.just("entropy")
)

beams = st.builds(
    BeamSearch, selection=st.sampled_from(["weighted", "majority", "best"]), **stepping
)


@given(search=beams, limits=budgets, world=worlds, order=orders)
@settings(max_examples=150, deadline=None)
def test_beam_keeps_its_rules(
    search: BeamSearch, limits: Limits, world: World, order: Random
) -> None:
    run = drive(search, limits=limits, world=world, order=order)
    tree = run.tree
    levels = [c.nodes for c in run.commands if isinstance(c, Score)]
    done = 0
    for depth, level in enumerate(levels, start=1):
        assert len(level) == search.n - done  # no path is lost
        assert {tree[n].depth for n in level} == {depth}
        done += sum(tree[n].status is NodeStatus.COMPLETE for n in level)
        check_level(search, run, level, search.n - done)
    committed = [sum(tokens(tree, level) for level in levels[:i]) for i in range(len(levels) + 1)]
    budget = math.inf if limits.token_budget is None else limits.token_budget
    assert done == search.n or committed[-1] >= budget
    assert all(c < budget for c in committed[:-1])
    assert tree.committed_tokens == committed[-1]
    for node in tree.nodes:
        assert tree[node].path_tokens == len(tree.path_token_ids(node)) <= limits.max_path_tokens
    check_choice(search, run)


def test_the_budget_is_reached_exactly() -> None:
    search = BeamSearch(n=6, branching=2, max_step_tokens=5)
    first = next(c.nodes for c in drive(search).commands if isinstance(c, Score))
    for budget, levels in ((tokens(drive(search).tree, first), 1), (1, 1), (10_000, None)):
        run = drive(search, limits=Limits(max_path_tokens=40, token_budget=budget))
        scored = [c for c in run.commands if isinstance(c, Score)]
        assert len(scored) == levels or (levels is None and len(scored) > 1)


def tokens(tree: Tree, nodes: tuple[NodeId, ...]) -> int:
    return sum(len(s.token_ids) for n in nodes if (s := tree[n].segment))


def check_level(search: BeamSearch, run: Run, level: tuple[NodeId, ...], width: int) -> None:
    tree, expanded = run.tree, {c.parent: c for c in run.commands if isinstance(c, Expand)}

    def rank(node: NodeId) -> tuple[float, int]:
        return (-aggregate(tree.path_scores(node), search.aggregate), node)

    kept = sorted((n for n in level if tree[n].status is NodeStatus.ACTIVE), key=rank)
    pruned = [n for n in level if tree[n].status is NodeStatus.PRUNED]
    doubles = [n for n in level if tree[n].status is NodeStatus.DUPLICATE]
    texts = {tree.path_text(n).strip(): n for n in (*kept, *pruned)}
    assert len(texts) == len(kept) + len(pruned)
    for node in doubles:
        assert texts[tree.path_text(node).strip()] < node
    assert len(kept) == min(-(-width // search.branching), len(texts))
    assert not kept or all(rank(kept[-1]) < rank(n) for n in pruned)
    if kept and kept[0] in expanded:
        shares = [len(expanded[n].children) for n in kept]
        assert sum(shares) == width
        assert shares == sorted(shares, reverse=True)
        assert shares[0] - shares[-1] <= 1
        assert len(texts) <= len(kept) or shares[0] <= search.branching
        last_step = tree[kept[0]].depth == search.max_steps - 1
        assert all(expanded[n].granularity.to_end == last_step for n in kept)


def check_choice(search: BeamSearch, run: Run) -> None:
    tree, finish = run.tree, run.end
    done = [n.id for n in tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    if not done:
        assert tree[finish.choice].status is NodeStatus.ACTIVE
        return
    score = {n: aggregate(tree.path_scores(n), search.aggregate) for n in done}
    assert tree[finish.choice].answer == finish.answer
    if finish.answer is None:
        assert not finish.votes
        assert score[finish.choice] == max(score.values())
        return
    same = [n for n in done if tree[n].answer == finish.answer]
    assert score[finish.choice] == max(score[n] for n in same)
    if search.selection == "best":
        assert score[finish.choice] == max(score[n] for n in done if tree[n].answer is not None)
    else:
        assert finish.votes[0].answer == finish.answer
        measure = "count" if search.selection == "majority" else "weight"
        most = max(getattr(v, measure) for v in finish.votes)
        assert getattr(finish.votes[0], measure) == most


@given(
    search=st.builds(Rebase, temperature=st.floats(0.01, 5), **stepping)
    | st.builds(DynamicBranching, **stepping),
    world=worlds,
    order=orders,
)
@settings(max_examples=60, deadline=None)
def test_the_width_is_met_exactly(
    search: Rebase | DynamicBranching, world: World, order: Random
) -> None:
    run = drive(search, world=world, order=order)
    expands = [c for c in run.commands if isinstance(c, Expand)]
    by_depth = Counter(run.tree[c.parent].depth for c in expands for _ in c.children)
    done = Counter(n.depth for n in run.tree.nodes.values() if n.status is NodeStatus.COMPLETE)
    for depth, width in by_depth.items():
        assert width == search.n - sum(done[d] for d in range(depth + 1))
    grown = [(run.tree[c.parent], len(c.children)) for c in expands if c.parent != ROOT]
    for (one, more), (other, fewer) in permutations(grown, 2):  # a better path gets no fewer
        mine, its = (search.score_path(run.states[-1], node.id) for node in (one, other))
        assert one.depth != other.depth or mine <= its or more >= fewer


@given(search=st.builds(Dvts, **stepping), world=worlds, order=orders)
@settings(max_examples=60, deadline=None)
def test_subtrees_stay_apart(search: Dvts, world: World, order: Random) -> None:
    run = drive(search, world=world, order=order)
    state = run.states[-1]
    complete = [n.id for n in run.tree.nodes.values() if n.status is NodeStatus.COMPLETE]
    done = Counter(search.find_family(state, node) for node in complete)
    full, rest = divmod(search.n, search.branching)
    assert [done[t] for t in sorted(done)] == [search.branching] * full + [rest] * (rest > 0)
    parents = [c.parent for c in run.commands if isinstance(c, Expand) and c.parent != ROOT]
    levels = {(search.find_family(state, node), run.tree[node].depth) for node in parents}
    assert len(levels) == len(parents)  # one path of each goes on


votes = st.builds(SelfConsistency, n=st.integers(1, 12), policy=policies)


@given(search=votes, limits=budgets, world=worlds, order=orders)
@settings(max_examples=100, deadline=None)
def test_groups_are_what_the_policy_allots(
    search: SelfConsistency, limits: Limits, world: World, order: Random
) -> None:
    run, n = drive(search, world=world, order=order, limits=limits), search.n
    sizes = [len(c.children) for c in run.commands if isinstance(c, Expand)]
    history = run.states[-1].history
    asked = [search.policy.allot(history[:i], n).more for i in range(len(sizes))]
    assert sizes == [max(1, more) if i == 0 else more for i, more in enumerate(asked)]
    assert sum(sizes) <= n
    assert [r.progress for r in history] == [sum(sizes[: i + 1]) for i in range(len(sizes))]
    if run.end.cut_by is None:
        assert sum(sizes) == n
    elif run.end.cut_by != "budget":
        assert search.policy.allot(history, n).more == 0


chains = st.builds(
    ProbedCot,
    probe_tokens=st.integers(0, 12),
    window=st.integers(1, 4),
    beside=st.booleans(),
    policy=st.none() | policies,
)


@given(search=chains, limits=budgets, world=worlds, order=orders)
@settings(max_examples=100, deadline=None)
def test_a_chain_is_a_chain(search: ProbedCot, limits: Limits, world: World, order: Random) -> None:
    run = drive(search, world=world, order=order, limits=limits)
    again = drive(search, world=world, order=Random(1), limits=limits)
    assert (run.tree, run.end) == (again.tree, again.end)
    nodes = list(run.tree.nodes.values())
    assert [n.parent for n in nodes] == [None, *range(len(nodes) - 1)]
    assert {n.seed for n in nodes} == {nodes[0].seed}
    probes = [c for c in run.commands if isinstance(c, Probe)]
    assert len({p.seed for p in probes}) == len(probes)
    assert all(p.seed != nodes[0].seed for p in probes)
    if search.probe_tokens == 0:
        assert not probes


def history_of(entropies: list[float], progress_values: list[int]) -> measures.History:
    return tuple(
        measures.Checkpoint(progress=at, tokens=10 * at, answers=at, measures={"entropy": entropy})
        for at, entropy in zip(sorted(progress_values), entropies, strict=False)
    )


@given(
    policy=policies,
    entropies=st.lists(unit, max_size=6),
    progress_values=st.lists(st.integers(1, 20), max_size=6, unique=True),
    cap=st.integers(20, 40),
)
def test_no_policy_goes_beyond_the_cap(
    policy: Policy, entropies: list[float], progress_values: list[int], cap: int
) -> None:
    history = history_of(entropies, progress_values)
    given_ = policy.allot(history, cap)
    spent = history[-1].progress if history else 0
    assert 0 <= given_.more <= cap - spent
    assert history or given_.more > 0
    assert policy.allot(history, cap) == given_


@given(policy=plain, progress=st.integers(1, 20), one=unit, other=unit)
def test_a_surer_run_never_gets_more(
    policy: Policy, progress: int, one: float, other: float
) -> None:
    assume(one <= other)
    less, more = (policy.allot(history_of([e], [progress]), 30).more for e in (one, other))
    assert more <= less


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=12))
def test_certainindex_is_in_the_unit_interval(answers: list[str | None]) -> None:
    found = measures.measure_certainty(answers)
    if found is None:
        assert set(answers) == {None}
        return
    assert 0 <= found <= 1
    assert (found == 1) == (len(set(answers)) == 1)
    assert measures.measure_certainty(reversed(answers)) == found
    agreed = measures.measure_consistency(answers, len(answers))
    assert (agreed is None) == (None in answers)
    assert agreed is None or 0 < agreed <= 1


@given(
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=9),
    total=st.integers(0, 50),
    least=st.integers(0, 2),
)
def test_apportion_is_exact_and_fair(weights: list[float], total: int, least: int) -> None:
    assume(total >= least * len(weights))
    shares = apportion(weights, total, least=least)
    assert sum(shares) == total
    assert min(shares) >= least
    whole = math.fsum(weights)
    if whole > 1e-6:
        rest = total - least * len(weights)
        for share, weight in zip(shares, weights, strict=True):
            assert abs(share - least - rest * weight / whole) < 1 + 1e-6


@given(st.floats(0.1, 0.9), st.floats(0.01, 0.9), st.integers(1, 20))
def test_the_k_of_app_e_is_the_least(epsilon: float, delta: float, groups: int) -> None:
    k = measures.count_needed_probes(epsilon=epsilon, delta=delta, num_groups=groups)
    assert measures.bound_failure(k, epsilon=epsilon, num_groups=groups) <= delta
    assert k == 2 or measures.bound_failure(k - 1, epsilon=epsilon, num_groups=groups) > delta


@given(st.lists(st.none() | st.text("abc ", max_size=6), max_size=10))
def test_groups_have_a_first_member(answers: list[str | None]) -> None:
    labels = group_by_first_match(answers, lambda a, b: measure_likeness(a, b) > 0.6)
    for answer, label in zip(answers, labels, strict=True):
        assert (answer is None) == (label is None)
        assert label is None or labels[answers.index(label)] == label
