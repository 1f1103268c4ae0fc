"""Each allocation policy, step by step, and the policy that a request's options make."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.certainty.combine import Thresholds
from flashedge.certainty.history import Checkpoint
from flashedge.certainty.policies import (
    Curve,
    Even,
    GiveUp,
    Lead,
    Length,
    Policy,
    Reason,
    Threshold,
)
from flashedge.certainty.rules import POLICIES, Rule
from flashedge.certainty.skyline import Skyline
from flashedge.errors import RequestError
from flashedge.runtime.request.early_exit import (
    ExitOptions,
    build_exit_policy,
    build_paper_rule,
)

SURE = Thresholds(least=(("entropy", 0.7),))
SKYLINE = Skyline(steps=((0.2, 18), (0.5, 12), (0.9, 6)))


def checkpoint(progress: int, entropy: float, tokens: int = 0) -> Checkpoint:
    return Checkpoint(
        progress=progress, tokens=tokens, answers=progress, measures={"entropy": entropy}
    )


def grants(policy: Policy, entropies: list[float], cap: int = 20) -> list[int]:
    """What is allotted, asked as a search asks: each time the last grant is used up."""
    history: tuple[Checkpoint, ...] = ()
    given = [policy.allot(history, cap).more]
    for entropy in entropies:
        history = (*history, checkpoint(sum(given), entropy))
        given.append(policy.allot(history, cap).more)
        if given[-1] == 0:
            break
    return given


@given(
    name=st.sampled_from(POLICIES),
    detect=st.integers(1, 20),
    cap=st.integers(1, 40),
    entropies=st.lists(st.floats(0, 1), min_size=40, max_size=40),
    give_up_after=st.integers(0, 20),
)
def test_no_group_is_larger_than_the_rule_says(
    name: str, detect: int, cap: int, entropies: list[float], give_up_after: int
) -> None:
    rule = Rule(
        policy=name,
        detect=detect,
        thresholds=(("entropy", 0.7),),
        max_tokens=10,
        curve=((0.2, 18), (0.5, 12), (0.9, 6)),
    )
    policy = rule.build_policy()
    if give_up_after:
        policy = GiveUp(policy=policy, after=give_up_after, below=0.3, measure="entropy")
    assert max(grants(policy, entropies, cap)) <= rule.find_largest_group(cap) <= cap


def test_even_gives_all() -> None:
    assert grants(Even(), []) == [20]


def test_static_looks_once() -> None:
    static = Threshold(detect=5, thresholds=SURE)
    assert grants(static, [0.8]) == [5, 0]
    assert grants(static, [0.69]) == [5, 15]
    assert static.allot((checkpoint(5, 0.1), checkpoint(9, 1.0)), 20).more == 11
    assert grants(static, [0.1], cap=3)[0] == 3


def test_every_5_and_every_step() -> None:
    assert grants(Threshold(detect=5, thresholds=SURE, every=5), [0.1, 0.1, 0.7]) == [5, 5, 5, 0]
    assert grants(Threshold(detect=5, thresholds=SURE, every=1), [0.1, 0.6, 0.9]) == [5, 1, 1, 0]
    last = Threshold(detect=5, thresholds=SURE, every=5).allot((checkpoint(18, 0.1),), 20)
    assert last.more == 2


def test_a_lead_is_looked_at_after_every_path() -> None:
    def allot(*values: float) -> int:
        history = tuple(
            replace(checkpoint(i, 0.0), measures={"lead": value})
            for i, value in enumerate(values, 1)
        )
        return Lead(detect=4, least=0.9).allot(history, 3).more

    assert [allot(), allot(0.8), allot(0.8, 0.9), allot(0.8, 0.8, 0.8)] == [1, 1, 0, 0]


def test_length_stops_short_runs_at_the_detection_step() -> None:
    policy = Length(detect=5, max_tokens=100)
    assert policy.allot((), 20).more == 5
    assert policy.allot((checkpoint(5, 0.0, tokens=100),), 20).more == 0
    assert policy.allot((checkpoint(5, 1.0, tokens=101),), 20).more == 15


def test_the_initial_curve_settles_the_end_at_the_detection_step() -> None:
    initial = Curve(detect=5, measure="entropy", skyline=SKYLINE)
    assert grants(initial, [0.3, 0.9]) == [5, 7, 0]  # 12 in all, whatever comes later
    assert grants(initial, [0.95]) == [5, 1]
    assert grants(initial, [0.1]) == [5, 13]
    assert grants(Curve(detect=8, measure="entropy", skyline=SKYLINE), [0.95]) == [8, 0]


def test_the_dynamic_curve_is_read_again() -> None:
    dynamic = Curve(detect=5, measure="entropy", skyline=SKYLINE, every=1)
    assert grants(dynamic, [0.3, 0.3, 0.95]) == [5, 1, 1, 0]
    assert grants(dynamic, [0.95, 0.3, 0.3]) == [5, 1, 1, 1]


def test_a_run_that_does_not_settle_is_given_up() -> None:
    static = Threshold(detect=5, thresholds=SURE)
    policy = GiveUp(policy=static, after=10, below=0.3, measure="entropy")
    assert grants(policy, [0.1, 0.2]) == [5, 5, 0]
    assert (
        policy.allot((checkpoint(5, 0.1), checkpoint(10, 0.2)), 20).reason is Reason.NON_CONVERGENCE
    )
    assert grants(policy, [0.1, 0.5]) == [5, 5, 10]
    assert policy.allot((checkpoint(5, 0.9),), 20).reason is Reason.CERTAINTY


# ---------------------------------------------------------------- as a request says it


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("self_consistency", Threshold(detect=5, thresholds=SURE)),
        (
            "mcts",
            Threshold(detect=3, thresholds=Thresholds(least=(("entropy", 0.99), ("reward", 0.4)))),
        ),
        (
            "rebase",
            Threshold(
                detect=16, thresholds=Thresholds(least=(("entropy", 0.85), ("reward", 0.99)))
            ),
        ),
        (
            "probed_cot",
            Threshold(detect=1, every=1, thresholds=Thresholds(least=(("consistency", 1.0),))),
        ),
    ],
)
def test_the_papers_defaults(strategy: str, expected: Policy) -> None:
    assert build_paper_rule(strategy).build_policy() == expected
    assert build_exit_policy(None, strategy) is None


@pytest.mark.parametrize("strategy", ["self_consistency", "best_of_n"])
def test_votes_stop_by_their_counts(strategy: str) -> None:
    assert build_exit_policy(ExitOptions(), strategy) == Lead(detect=4, least=0.955)
    changed = ExitOptions(policy="lead", detect=6, thresholds={"lead": 0.9})
    assert build_exit_policy(changed, strategy) == Lead(detect=6, least=0.9)
    named = build_exit_policy(ExitOptions(policy="static"), strategy)
    assert named == build_paper_rule(strategy).build_policy()
    other = build_exit_policy(ExitOptions(), "mcts")
    assert other == build_paper_rule("mcts").build_policy()


def test_options_make_their_policy() -> None:
    def made(**fields: Any) -> Policy | None:
        return build_exit_policy(ExitOptions(**fields), "self_consistency")

    assert made(policy="every_5", detect=3, thresholds={"entropy": 0.9}) == Threshold(
        detect=3, every=5, thresholds=Thresholds(least=(("entropy", 0.9),))
    )
    assert made(policy="length", max_tokens=9) == Length(detect=5, max_tokens=9)
    points = ((0.9, 2), (0.1, 9))
    skyline = Skyline(steps=((0.1, 9), (0.9, 2)))
    initial = Curve(detect=5, measure="entropy", skyline=skyline)
    assert made(policy="initial_curve", curve=points) == initial
    dynamic = Curve(detect=5, measure="entropy", skyline=skyline, every=1)
    assert made(policy="dynamic_curve", curve=points) == dynamic
    assert made(give_up_after=7, give_up_below=0.2) == GiveUp(
        policy=Lead(detect=4, least=0.955),
        after=7,
        below=0.2,
        measure="entropy",
    )


def test_options_go_through_json() -> None:
    options = ExitOptions(policy="initial_curve", curve=((0.5, 3),), thresholds={"reward": 0.5})
    told = {**asdict(options), "curve": [[0.5, 3]]}
    assert ExitOptions.from_json(told) == options


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "even"},
        {"policy": "length"},
        {"policy": "initial_curve"},
        {"policy": "lead", "thresholds": {"entropy": 0.5}},
        {"detect": 0},
        {"detect": True},
        {"thresholds": {"entropy": 1.5}},
        {"thresholds": {"luck": 0.5}},
        {"thresholds": [0.5]},
        {"curve": [1, 2]},
        {"curve": [[0.5, 1, 2]]},
        {"curve": [[0.5, "x"]]},
        {"give_up_after": -1},
        {"give_up_below": "x"},
        {"patience": 3},
        {"max_tokens": 0},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="early_exit"):
        ExitOptions.from_json(wrong)
