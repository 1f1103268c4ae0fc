"""What a deterministic search is refused, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.errors import Conflict, EngineDead, RequestError
from flashedge.runtime.request.plan import (
    ALL,
    check_same_bits,
    check_shapes,
    decide_boost,
    is_boosted,
)
from tests.support.runtime_rig import BEAM

FLAGGED = replace(BEAM, deterministic=True)
MCTS = replace(FLAGGED, strategy="mcts")


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
    assert not is_boosted(decide_boost(MCTS, ALL))
    assert is_boosted(decide_boost(replace(MCTS, deterministic=False), ALL))


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
