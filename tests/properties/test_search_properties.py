"""Beam search, step splitting, answers and the persistent tree under random inputs."""

from __future__ import annotations

import pickle
from fractions import Fraction
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize
from flashedge.search.aggregates import AGGREGATES, aggregate
from flashedge.search.base import Expand, Score
from flashedge.search.step_rules import BoundaryRule, split_steps
from flashedge.search.strategies.beam import BeamSearch
from flashedge.search.tree import ROOT, NodeStatus, Tree, Vector
from flashedge.search.voting import count_votes
from flashedge.types import Limits, NodeId
from tests.support.search_rig import Run, World, drive

S = NodeStatus
PIECES = ["a", "b", " ", "\n", "\n\n", ".\n", "\nc", "\n\n\n", "d\n\ne", ""]
COMMANDS = ("frac", "text{", "left", "right", "circ", ",", "sqrt", "boxed{", "(", "$")
WORDS = (
    *("cm", "1/2", "000", "yes", " apples", "2 1/3", "\\frac{1}{2}", "½", "–", "×10⁵", "e3", "_2"),
    *("(B)", "B)", "B: ", "**", "`", " AM", " million", " or ", ", ", "~", "five", "!", "<", "|"),
    *("\\text{ cm}", "\\overline{3}", "\\approx "),
)
MATHS = st.lists(
    st.sampled_from([*"0512.,-+{}$x=()^\\% \n", *WORDS, *(f"\\{c}" for c in COMMANDS)]), max_size=10
).map("".join)

beams = st.builds(
    BeamSearch,
    n=st.integers(1, 12),
    branching=st.integers(1, 6),
    max_step_tokens=st.integers(1, 10),
    max_steps=st.integers(1, 6),
    aggregate=st.sampled_from(AGGREGATES),
    selection=st.sampled_from(["weighted", "majority", "best"]),
)


@given(
    search=beams,
    limits=st.builds(
        Limits, max_path_tokens=st.integers(1, 40), token_budget=st.none() | st.integers(1, 200)
    ),
    world=st.integers(0, 1000).map(World),
    order=st.integers(0, 1000).map(Random),
)
@settings(max_examples=150, deadline=None)
def test_beam_keeps_its_rules(
    search: BeamSearch, limits: Limits, world: World, order: Random
) -> None:
    run = drive(search, limits=limits, world=world, order=order)
    tree = run.tree
    levels = [c.nodes for c in run.commands if isinstance(c, Score)]
    expanded = {c.parent: c for c in run.commands if isinstance(c, Expand)}
    done = 0
    for depth, level in enumerate(levels, start=1):
        assert len(level) == search.n - done  # no path is lost
        assert {tree[n].depth for n in level} == {depth}
        done += sum(tree[n].status is S.COMPLETE for n in level)
        check_level(search, tree, level, search.n - done, expanded)
    committed = [sum(tokens(tree, level) for level in levels[:i]) for i in range(len(levels) + 1)]
    if limits.token_budget is None:
        assert done == search.n
    else:
        assert done == search.n or committed[-1] >= limits.token_budget
        assert all(c < limits.token_budget for c in committed[:-1])
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


def check_level(
    search: BeamSearch,
    tree: Tree,
    level: tuple[NodeId, ...],
    width: int,
    expanded: dict[NodeId, Expand],
) -> None:
    def rank(node: NodeId) -> tuple[float, int]:
        return (-aggregate(tree.path_scores(node), search.aggregate), node)

    kept = sorted((n for n in level if tree[n].status is S.ACTIVE), key=rank)
    pruned = [n for n in level if tree[n].status is S.PRUNED]
    doubles = [n for n in level if tree[n].status is S.DUPLICATE]
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
    done = [n.id for n in tree.nodes.values() if n.status is S.COMPLETE]
    if not done:
        assert tree[finish.choice].status is S.ACTIVE
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


@given(st.text(alphabet="ab \n", max_size=40))
def test_split_steps_loses_nothing(text: str) -> None:
    steps = split_steps(text)
    assert "".join(steps) == text
    assert len(steps) == 1 or all(s.strip() for s in steps)
    assert all(s.endswith("\n\n") for s in steps[:-1])
    assert all("\n\n" not in s.strip() for s in steps)
    assert [t for s in steps for t in split_steps(s)] == list(steps)


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=20))
def test_ids_and_text_agree_on_boundaries(ids: list[int]) -> None:
    rule = BoundaryRule.from_texts(enumerate(PIECES))
    assert BoundaryRule.from_json(rule.to_json()) == rule == pickle.loads(pickle.dumps(rule))
    pieces = rule.split_ids(ids)
    assert [i for piece in pieces for i in piece] == ids
    nothing = PIECES.index("")
    for at, piece in enumerate(pieces):
        text = "".join(PIECES[i] for i in piece)
        if at < len(pieces) - 1:
            assert "\n\n" in text
        if nothing not in piece and piece and PIECES[piece[0]].strip():
            assert "\n\n" not in "".join(PIECES[i] for i in piece[:-1])


@given(MATHS | st.text(max_size=30))
@settings(max_examples=300, deadline=None)
def test_normalize_is_idempotent_and_total(text: str) -> None:
    form = normalize(text)
    assert normalize(form) == form
    assert decide_equal(text, form) is True
    extract_answer(text)


@given(MATHS, MATHS)
@settings(max_examples=300, deadline=None)
def test_equality_is_symmetric_and_by_normal_forms(a: str, b: str) -> None:
    same = decide_equal(a, b)
    assert decide_equal(b, a) is same
    assert decide_equal(normalize(a), normalize(b)) is same


@given(
    whole=st.integers(0, 10**6),
    part=st.tuples(st.integers(1, 99), st.integers(1, 99)).map(sorted),
    sign=st.sampled_from(["", "-"]),
    form=st.sampled_from(
        ["{w} {a}/{b}", "{w}\\frac{{{a}}}{{{b}}}", "{w} \\dfrac{{{a}}}{{{b}}} cm"]
    ),
)
def test_a_mixed_number_has_the_value_of_its_sum(
    whole: int, part: list[int], sign: str, form: str
) -> None:
    assume(part[0] < part[1])
    text = sign + form.format(w=whole, a=part[0], b=part[1])
    value = whole + Fraction(part[0], part[1])
    assert parse_number(normalize(text)) == (-value if sign else value)
    assert normalize(normalize(text)) == normalize(text)


@given(MATHS, st.text(max_size=20))
def test_a_balanced_box_is_found(inside: str, before: str) -> None:
    if inside.count("{") == inside.count("}") == 0 and not inside.endswith("\\"):
        found = extract_answer(f"{before} \\boxed{{{inside}}} done")
        is_blank = not any(char.isalnum() for char in inside)
        assert found == inside.strip() or (is_blank and found is None)


@given(
    st.lists(
        st.tuples(st.none() | st.sampled_from("abc"), st.integers(0, 10).map(lambda i: i / 10)),
        max_size=12,
    ),
    st.sampled_from(["weighted", "majority"]),
)
def test_votes_count_every_answer_once(ballots: list[tuple[str | None, float]], by: str) -> None:
    counted = count_votes(ballots, by)
    assert sum(v.count for v in counted) == sum(a is not None for a, _ in ballots)
    assert len({v.answer for v in counted}) == len(counted)
    keys = [(v.count, v.weight) if by == "majority" else (v.weight, v.count) for v in counted]
    assert keys == sorted(keys, reverse=True)


@given(st.lists(st.lists(st.tuples(st.integers(0, 600), st.integers()), max_size=300), max_size=4))
@settings(max_examples=50, deadline=None)
def test_vector_is_a_list_that_never_changes(batches: list[list[tuple[int, int]]]) -> None:
    vector: Vector[int] = Vector()
    model: list[int] = []
    for batch in batches:
        before, kept = vector, list(model)
        changes = []
        for index, item in batch:
            index = min(index, len(model))
            changes.append((index, item))
            model[index : index + 1] = [item]
        vector = vector.update(changes)
        assert list(vector) == model
        assert len(vector) == len(model)
        assert list(before) == kept


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_tree_knows_its_children(expansions: list[tuple[int, int]]) -> None:
    tree = Tree.from_seed(1)
    for parent, count in expansions:
        tree, made = tree.expand(NodeId(parent % len(tree.nodes)), count)
        assert [n.id for n in made] == list(range(len(tree.nodes) - count, len(tree.nodes)))
    for node in tree.nodes.values():
        children = tree.children(node.id)
        assert children == tuple(n for n in tree.nodes.values() if n.parent == node.id)
        assert [c.index for c in children] == list(range(len(children)))
    assert list(tree.nodes) == sorted(tree.nodes)
    assert tree.path(ROOT) == ()
