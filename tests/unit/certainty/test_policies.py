"""Each allocation policy, step by step, and the policy that a request's options make."""

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.certainty.measures import Checkpoint
from flashedge.certainty.policies import POLICIES, GiveUp, Policy, Reason, Rule
from flashedge.errors import RequestError
from flashedge.runtime.request.early_exit import ExitOptions, build_exit_policy, build_paper_rule

STATIC = Rule(policy="static", detect=5, thresholds=(("entropy", 0.7),))
COUNTED = Rule(policy="lead", detect=4, thresholds=(("lead", 0.955),))


def checkpoint(at: int, entropy: float) -> Checkpoint:
    return Checkpoint(progress=at, tokens=0, answers=at, measures={"entropy": entropy})


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
    rule = replace(STATIC, policy=name, detect=detect)
    policy: Policy = rule
    if give_up_after:
        policy = GiveUp(policy=rule, after=give_up_after, below=0.3, measure="entropy")
    assert max(grants(policy, entropies, cap)) <= rule.find_largest_group(cap) <= cap


def test_static_looks_once() -> None:
    assert grants(STATIC, [0.8]) == [5, 0]
    assert grants(STATIC, [0.69]) == [5, 15]
    assert STATIC.allot((checkpoint(5, 0.1), checkpoint(9, 1.0)), 20).more == 11
    assert grants(STATIC, [0.1], cap=3)[0] == 3


def test_every_5_and_every_step() -> None:
    every_5, every_step = replace(STATIC, policy="every_5"), replace(STATIC, policy="every_step")
    assert grants(every_5, [0.1, 0.1, 0.7]) == [5, 5, 5, 0]
    assert grants(every_step, [0.1, 0.6, 0.9]) == [5, 1, 1, 0]
    assert every_5.allot((checkpoint(18, 0.1),), 20).more == 2


def test_all_thresholds_must_be_met() -> None:
    both = replace(STATIC, thresholds=(("entropy", 0.99), ("reward", 0.4)))
    assert both.is_met({"entropy": 0.99, "reward": 0.4, "other": 0.0})
    unmet = {"entropy": 0.98, "reward": 1.0}, {"entropy": 1.0, "reward": 0.39}, {"entropy": 1.0}
    assert not any(both.is_met(found) for found in unmet)


def test_a_lead_is_looked_at_after_every_path() -> None:
    def allot(*leads: float) -> int:
        seen = [replace(checkpoint(i, 0.0), measures={"lead": x}) for i, x in enumerate(leads, 1)]
        return replace(COUNTED, thresholds=(("lead", 0.9),)).allot(tuple(seen), 3).more

    assert [allot(), allot(0.8), allot(0.8, 0.9), allot(0.8, 0.8, 0.8)] == [1, 1, 0, 0]


def test_a_run_that_does_not_settle_is_given_up() -> None:
    policy = GiveUp(policy=STATIC, after=10, below=0.3, measure="entropy")
    assert grants(policy, [0.1, 0.2]) == [5, 5, 0]
    seen = checkpoint(5, 0.1), checkpoint(10, 0.2)
    assert policy.allot(seen, 20).reason is Reason.NON_CONVERGENCE
    assert grants(policy, [0.1, 0.5]) == [5, 5, 10]
    assert policy.allot((checkpoint(5, 0.9),), 20).reason is Reason.CERTAINTY


@pytest.mark.parametrize("strategy", ["self_consistency", "best_of_n"])
def test_votes_stop_by_their_counts(strategy: str) -> None:
    assert build_exit_policy(ExitOptions(), strategy) == COUNTED
    changed = ExitOptions(policy="lead", detect=6, thresholds={"lead": 0.9})
    expected = replace(COUNTED, detect=6, thresholds=(("lead", 0.9),))
    assert build_exit_policy(changed, strategy) == expected
    named = build_exit_policy(ExitOptions(policy="static"), strategy)
    assert named == build_paper_rule(strategy)
    trees = [build_exit_policy(ExitOptions(), name) for name in ("mcts", "rebase")]
    assert [rule.detect for rule in trees] == [3, 16]  # type: ignore[union-attr]
    assert trees == [build_paper_rule("mcts"), build_paper_rule("rebase")]


def test_options_make_their_policy() -> None:
    def made(**fields: Any) -> Policy | None:
        return build_exit_policy(ExitOptions(**fields), "self_consistency")

    fields: dict[str, Any] = {"policy": "every_5", "detect": 3, "thresholds": {"entropy": 0.9}}
    assert made(**fields) == Rule(policy="every_5", detect=3, thresholds=(("entropy", 0.9),))
    patient = GiveUp(policy=COUNTED, after=7, below=0.2, measure="entropy")
    assert made(give_up_after=7, give_up_below=0.2) == patient
    assert ExitOptions.from_json(asdict(ExitOptions(**fields))) == ExitOptions(**fields)


def test_a_removed_policy_opens_and_starts_no_run() -> None:
    """So a stored run that had it can be read."""
    stored = {"policy": "length", "detect": 5, "max_tokens": 100, "curve": []}
    options = ExitOptions.from_json(stored)
    assert (options.policy, options.detect) == ("length", 5)
    with pytest.raises(RequestError, match="policy length was removed") as error:
        build_exit_policy(options, "self_consistency")
    assert "every_step" in error.value.line


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "even"},
        {"policy": "lead", "thresholds": {"entropy": 0.5}},
        {"detect": 0},
        {"detect": True},
        {"thresholds": {"entropy": 1.5}},
        {"thresholds": {"luck": 0.5}},
        {"thresholds": [0.5]},
        {"give_up_after": -1},
        {"give_up_below": "x"},
        {"patience": 3},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="early_exit"):
        ExitOptions.from_json(wrong)
