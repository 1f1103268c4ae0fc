"""What the daemon decides: boosting, deterministic searches, the paths drawn at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.errors import Conflict, EngineDead, RequestError
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import (
    ALL,
    ASKED,
    OFF,
    check_same_bits,
    check_shapes,
    decide_boost,
    is_boosted,
)
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import count_paths_at_once
from flashedge.types import Problem
from tests.support.runtime_rig import BEAM

MCTS = replace(BEAM, strategy="mcts")


@pytest.mark.parametrize(
    ("options", "mode", "boosted"),
    [
        ({}, ASKED, False),
        ({"boost": True}, ASKED, True),
        ({"boost": True}, OFF, False),
        ({}, ALL, True),
        ({"boost": False}, ALL, False),
        ({"parallel": 4}, ALL, False),
    ],
)
def test_the_request_and_the_setting_decide(
    options: dict[str, Any], mode: str, boosted: bool
) -> None:
    resolved = decide_boost(replace(MCTS, options=options), mode)
    assert is_boosted(resolved) is boosted
    assert decide_boost(resolved, mode) == resolved


def test_the_record_tells_that_a_request_was_not_boosted() -> None:
    assert decide_boost(replace(MCTS, options={"boost": True}), OFF).options == {"boost": False}


def test_other_searches_and_baselines_are_left_alone() -> None:
    baseline = replace(MCTS, baseline=True)
    for spec in (BEAM, baseline):
        assert decide_boost(spec, ALL) is spec


def test_a_boosted_run_has_no_fixed_number() -> None:
    with pytest.raises(RequestError, match="has no parallel of its own"):
        decide_boost(replace(MCTS, options={"boost": True, "parallel": 2}), ASKED)
    with pytest.raises(RequestError, match="has no take of its own"):
        decide_boost(replace(MCTS, options={"boost": True, "take": "arrival"}), ASKED)


FLAGGED = replace(BEAM, deterministic=True)


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"deadline_s": 3.0}, "deadline_s", "token_budget"),
        ({"strategy": "mcts", "options": {"boost": True}}, "options.boost", "parallel"),
        ({"strategy": "mcts", "options": {"take": "arrival"}}, "options.take", "launch"),
        ({"guidance": {"regex": "a"}}, "deterministic", "match"),
        ({"baseline": True}, "baseline", "leave out baseline"),
    ],
)
def test_what_depends_on_time_or_load_is_refused(
    fields: dict[str, Any], param: str, hint: str
) -> None:
    with pytest.raises(RequestError, match="a deterministic search can't have") as error:
        replace(FLAGGED, **fields)
    assert error.value.param == param
    assert error.value.hint is not None
    assert hint in error.value.hint
    replace(BEAM, **fields)  # without the flag it may


@pytest.mark.parametrize(
    "fields",
    [
        {"token_budget": 100},
        {"strategy": "mcts", "options": {"parallel": 4, "take": "launch", "boost": False}},
    ],
)
def test_token_budgets_and_a_fixed_number_of_rollouts_are_allowed(fields: dict[str, Any]) -> None:
    spec = replace(FLAGGED, **fields)
    assert type(spec).from_json(spec.to_json()) == spec


def test_no_setting_boosts_it() -> None:
    assert not is_boosted(decide_boost(replace(MCTS, deterministic=True), ALL))
    assert is_boosted(decide_boost(MCTS, ALL))


def test_both_engines_need_a_shape() -> None:
    shape = {"window": 32}
    check_shapes({"replay_shape": shape, "score_shape": shape})
    with pytest.raises(RequestError, match="equal bits for the verifier"):
        check_shapes({"replay_shape": shape, "score_shape": None})
    with pytest.raises(RequestError, match="for the generator and the verifier"):
        check_shapes({})


def test_a_self_test_that_has_not_ended_is_said() -> None:
    with pytest.raises(EngineDead, match="self-test still runs"):
        check_shapes(None)
    with pytest.raises(RequestError, match=r"did not end \(it takes too long"):
        check_shapes({"failure": "it takes too long on this machine"})


def test_a_run_goes_on_with_the_bits_it_began_with() -> None:
    earlier = {"id": "run-1", "fingerprint": {"torch": "2"}}
    check_same_bits(earlier, {"fingerprint": {"torch": "2"}})
    with pytest.raises(Conflict, match="run run-1 was computed by other models or engines"):
        check_same_bits(earlier, {"fingerprint": {"torch": "3"}})


@pytest.mark.parametrize(
    ("strategy", "fields", "paths"),
    [
        ("beam", {"n": 16}, 16),
        ("self_consistency", {"n": 16}, 16),
        ("mcts", {"n": 16}, 4),
        ("mcts", {"n": 16, "branching": 2, "options": {"parallel": 3}}, 6),
        ("mcts", {"n": 2, "options": {"parallel": 8}}, 8),
        ("mcts", {"n": 16, "options": {"boost": True}}, 4),
    ],
)
def test_it_is_what_the_strategy_draws_at_once(
    strategy: str, fields: dict[str, Any], paths: int
) -> None:
    spec = Request(problem=Problem.from_text("?"), pair="bundled", strategy=strategy, **fields)
    assert count_paths_at_once(spec) == paths


def test_groups_of_an_early_exit_are_drawn_one_after_the_other() -> None:
    spec = Request(
        problem=Problem.from_text("?"),
        pair="bundled",
        strategy="self_consistency",
        n=64,
        early_exit=ExitOptions(),
    )
    assert 1 < count_paths_at_once(spec) < 64
