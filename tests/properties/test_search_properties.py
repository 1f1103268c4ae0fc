"""Step splitting, answers and the persistent tree under random inputs."""

import pickle
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer
from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize
from flashedge.search.step_rules import BoundaryRule, split_steps
from flashedge.search.tree import ROOT, Tree, Vector
from flashedge.search.voting import count_votes
from flashedge.types import NodeId

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
