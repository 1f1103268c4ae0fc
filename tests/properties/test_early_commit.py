"""A node that counts as certainly kept is kept in every completion of its level: all of them are
played through the search itself, with all scores, ends, duplicates and lengths that are open."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from random import Random
from typing import Any

import pytest

from flashedge.certainty.policies import Rule
from flashedge.search.base import Generated, Result, Scored
from flashedge.search.early_commit import find_certain
from flashedge.search.level import LevelState, Standing, Stepwise
from flashedge.search.strategies.beam import (
    BeamSearch,
    Dvts,
    DynamicBranching,
    Rebase,
    VaryingGranularity,
)
from flashedge.types import FinishReason, Limits, NodeId
from tests.support.search_rig import PROBLEM, make_segment

STRATEGIES: tuple[type[Stepwise], ...] = (
    BeamSearch,
    VaryingGranularity,
    Dvts,
    DynamicBranching,
    Rebase,
)
TEXTS = ("a", "aa", "b")
"""Two paths over several steps can have the same text: a + aa = aa + a."""
GRID = (0.0, 0.5, 1.0)
LENGTHS = (1, 4)
MOST_OPEN = 3


@dataclass(frozen=True)
class Case:
    """A level at some moment: what was told of it, and what each node may still turn out to be."""

    search: Stepwise
    state: LevelState
    scores: Mapping[NodeId, tuple[float, ...]]
    written: Mapping[NodeId, str]
    options: tuple[tuple[tuple[Result, ...], ...], ...]
    """By open node, the results that may come."""

    def find(self) -> Mapping[NodeId, int]:
        return find_certain(self.search, self.state, self.scores, lambda n: self.written.get(n, ""))

    def complete(self) -> Iterator[LevelState]:
        """Yield the state after each completion of the level."""
        for chosen in product(*self.options):
            told = [result for results in chosen for result in results]
            generated = [result for result in told if isinstance(result, Generated)]
            scored = [result for result in told if isinstance(result, Scored)]
            known = [Scored(node=n, scores=s) for n, s in self.scores.items()]
            yield reduce(self.tell, [*generated, *known, *scored], self.state)

    def tell(self, state: LevelState, result: Result) -> LevelState:
        return self.search.tell(state, result)[0]

    def find_least(self) -> dict[NodeId, int]:
        """The least number of children of each node in all completions."""
        finals = list(self.complete())
        assert all(s.level != self.state.level or s.outstanding == 0 for s in finals)
        return {
            node: min(len(state.tree.children(node)) for state in finals)
            for node in self.state.level
        }


def write(state: LevelState, node: NodeId, text: str, length: int, *, ends: bool) -> Generated:
    finish = FinishReason.STOP if ends else FinishReason.BOUNDARY
    segment = make_segment(text, tokens=(1,) * length, finish=finish)
    return Generated(node=node, segment=segment)


def make_search(kind: type[Stepwise], draw: Random) -> Stepwise:
    fields: dict[str, Any] = {
        "n": draw.choice((3, 4, 5, 6, 8)),
        "branching": draw.choice((2, 2, 3)),
        "aggregate": draw.choice(("last", "last", "min", "prod", "mean")),
        "max_step_tokens": LENGTHS[-1],
    }
    if draw.random() < 0.2:
        detect = draw.randint(1, fields["n"])
        fields["policy"] = Rule(policy="static", detect=detect, thresholds=(("entropy", 0.9),))
    if kind is Rebase:
        fields |= {"temperature": draw.choice((0.2, 1.0)), "width": draw.choice((0, 3))}
    if kind is VaryingGranularity:
        fields |= {"short_step_tokens": LENGTHS[-1], "long_step_tokens": LENGTHS[-1]}
    return kind(**fields)


def make_case(kind: type[Stepwise], draw: Random) -> Case:
    """Draw a search, play its first levels, and stop in the midst of the next one."""
    search = make_search(kind, draw)
    budget = draw.choice((None, None, None, 10, 20))
    state, _ = search.start(
        PROBLEM, draw.randrange(100), Limits(max_path_tokens=100, token_budget=budget)
    )

    def finish(node: NodeId, ends: float) -> Generated:
        text = draw.choice(TEXTS) if draw.random() < 0.4 else f"{draw.random()}"
        length = draw.choice(LENGTHS)
        return write(state, node, text, length, ends=draw.random() < ends)

    for _ in range(draw.randint(0, 2)):
        level = state.level
        for node in level:
            state = search.tell(state, finish(node, 0.15))[0]
        for node in level:
            state = search.tell(state, Scored(node=node, scores=(draw.choice(GRID),)))[0]
        if state.level == level:
            return make_case(kind, draw)  # the search is over, or asks its policy
    order = draw.sample(state.level, len(state.level))
    num_growing = draw.randint(0, min(2 if budget is None else 1, len(order)))
    num_unscored = draw.randint(0, min(MOST_OPEN - num_growing, len(order) - num_growing))
    growing, unscored = order[:num_growing], order[num_growing:][:num_unscored]
    written: dict[NodeId, str] = {}
    for node in state.level:
        if node not in growing:
            state = search.tell(state, finish(node, 0.2))[0]
    options: list[tuple[tuple[Result, ...], ...]] = []
    for node in growing:
        written[node] = draw.choice(("", "a", "b"))
        lengths = LENGTHS if budget is not None else LENGTHS[:1]
        texts = [text for text in TEXTS if text.startswith(written[node])]
        made: list[tuple[Result, ...]] = []
        for text, length in product([*texts, f"{written[node]} {node}"], lengths):
            step = write(state, node, text, length, ends=False)
            made += [(step, Scored(node=node, scores=(score,))) for score in GRID]
        made += [
            (write(state, node, "end", length, ends=True), Scored(node=node, scores=(0.0,)))
            for length in lengths
        ]
        options.append(tuple(made))
    options += [tuple((Scored(node=n, scores=(s,)),) for s in GRID) for n in unscored]
    scores = {node: (draw.choice(GRID),) for node in order[num_growing + num_unscored :]}
    if not growing and draw.random() < 0.5:  # told to the search, which waits for the others
        told = [Scored(node=node, scores=s) for node, s in scores.items()] if unscored else []
        state = reduce(lambda at, result: search.tell(at, result)[0], told, state)
    return Case(search, state, scores, written, tuple(options))


CASES = 60


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.name)
def test_what_is_certain_holds_in_every_completion(kind: type[Stepwise]) -> None:
    """And most of what holds in all of them is found, among the nodes that have a score."""
    draw = Random(f"early commit {kind.name}")
    found_nodes = kept_nodes = 0
    for _ in range(CASES):
        case = make_case(kind, draw)
        found, least = case.find(), case.find_least()
        for node, count in found.items():
            assert 0 < count <= least[node], (case, node)
        found_nodes += len(found)
        kept_nodes += sum(least[node] > 0 for node in case.scores)
    assert kept_nodes >= 25
    assert found_nodes >= (0.4 if kind is Rebase else 0.8) * kept_nodes


NO_CHILDREN: Mapping[str, int] = {}


def play(search: Stepwise, *levels: Mapping[str, float | None]) -> LevelState:
    """Tell the search levels of nodes, by their texts in the order of their ids. None: the last
    level's node is not scored, or has only written to write a text that ends with dots."""
    state, _ = search.start(PROBLEM, 0, Limits(max_path_tokens=100))
    for level in levels:
        nodes = dict(zip(state.level, level.items(), strict=True))
        for node, (text, _) in nodes.items():
            if not text.endswith("…"):
                state = search.tell(state, write(state, node, text.strip(), 1, ends=False))[0]
        for node, (_, score) in nodes.items():
            if score is not None and level is not levels[-1]:
                state = search.tell(state, Scored(node=node, scores=(score,)))[0]
    return state


def find(
    search: Stepwise, *levels: Mapping[str, float | None], before: Mapping[str, int] = NO_CHILDREN
) -> dict[str, int]:
    """The certain children of the last level's nodes by their texts."""
    state, level = play(search, *levels), levels[-1]
    texts = dict(zip(state.level, level, strict=True))
    scores = {n: (s,) for n, t in texts.items() if (s := level[t]) is not None}
    known = {node: before[text] for node, text in texts.items() if text in before}
    found = find_certain(search, state, scores, lambda n: texts[n].removesuffix("…"), known)
    return {texts[node]: count for node, count in found.items()}


def test_fewer_rivals_than_places_make_a_node_certain() -> None:
    """Two of four are kept. The third score decides about the best, the last one about the rest."""
    search = BeamSearch(n=4, branching=2)
    assert find(search, {"a": 0.5, "b": 0.4, "c…": None, "d…": None}) == {}
    assert find(search, {"a": 0.5, "b": 0.4, "c": 0.1, "d…": None}) == {"a": 2}
    assert find(search, {"a": 0.5, "b": 0.4, "c": 0.1, "d": None}) == {"a": 2}
    assert find(search, {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.4}) == {"a": 2, "b": 2}


def test_what_was_certain_may_get_more_children() -> None:
    """10 = 4 + 3 + 3, and a comes third if both that generate are better. What has as many as
    nodes get is not examined again, and neither is what comes after a few that have fewer."""
    search, level = BeamSearch(n=10, branching=4), {"a": 0.9, **dict.fromkeys("bcdefgh", 0.1)}
    still_open, scored = {**level, "x…": None, "y…": None}, {**level, "x": 0.1, "y": 0.1}
    assert find(search, still_open) == {"a": 3}
    assert find(search, scored, before={"a": 3}) == {"a": 4, "b": 3, "c": 3}
    assert find(search, still_open, before={"a": 4, "b": 4}) == {"a": 4, "b": 4}
    few = dict.fromkeys("abcd", 1)
    assert find(search, scored, before=few) == {"a": 4, "b": 3, "c": 3, "d": 1}


def test_the_scores_before_bound_those_to_come() -> None:
    """By `min` the children of b can't be better than 0.4. But if both end, only one is kept."""
    level = {"a": 0.9, "b": 0.4, "c": 0.1, "d": 0.1}
    after = {"p": 0.6, "q": 0.7, "r…": None, "s…": None}
    assert find(BeamSearch(n=4, branching=2), level, after) == {}
    assert find(BeamSearch(n=4, branching=2, aggregate="min"), level, after) == {"q": 2}


def test_a_node_that_a_lower_one_may_repeat_is_not_certain() -> None:
    search, others = BeamSearch(n=4, branching=2), {"abc": 0.9, "d": 0.1, "e": 0.1}
    assert find(search, {"ab…": None, **others}) == {}
    assert find(search, {"x…": None, **others}) == {"abc": 2}


def test_paths_of_two_parents_can_be_equal() -> None:
    search, level = BeamSearch(n=4, branching=2), {"a": 0.9, "aa": 0.8, "b": 0.1, "c": 0.1}
    assert find(search, level, {"aa": 0.1, "x": 0.1, "a": 0.9, "y…": None}) == {}
    assert find(search, level, {"az": 0.1, "x": 0.1, "a": 0.9, "y…": None}) == {"a": 2}


def test_the_shares_of_the_best_rivals_are_subtracted() -> None:
    """Three paths are kept, with a child each and 5 more by score: 5 * 0.9 / 2.9 = 1.6."""
    search = DynamicBranching(n=8, branching=3)
    level = dict(zip("abcdefgh", (0.9, *[0.1] * 5, None, None), strict=True))
    assert find(search, level) == {"a": 2}


@pytest.mark.parametrize(
    ("growing", "better", "children"),
    [
        pytest.param((1.0, 1.0), 2, 1, id="least if none ends: 8 * 90 / (90 + 5 + 2 * 148)"),
        pytest.param((0.0, 0.0), 0, 5, id="least if both end: 6 * 90 / (90 + 5)"),
        pytest.param((1.0, 0.0), 1, 1, id="the best bound for both"),
    ],
)
def test_the_least_share_of_rebase(growing: tuple[float, ...], better: int, children: int) -> None:
    """Weights: e^(0.9 / 0.2) = 90, e^0 = 1, e^(1 / 0.2) = 148."""
    path = Standing(
        score=0.9, finished=[0.0] * 5, better=0, growing=growing, growing_better=better, width=8
    )
    assert Rebase(n=8).count_certain_children(path) == children
