"""What the daemon decides: boosting, deterministic searches, the paths drawn at once; and the rule
entropy in a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.errors import Conflict, EngineDead, RequestError
from flashedge.runtime.drive.segments import StepTexts
from flashedge.runtime.drive.speculation_client import SpeculationClient
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
from flashedge.runtime.request.strategies import build_search, count_paths_at_once
from flashedge.runtime.request.validation import Request
from flashedge.search.base import Expand
from flashedge.search.step_rules import EntropyRule
from flashedge.types import STEP_RULES
from tests.support.runtime_rig import BEAM, sim_engines

MCTS = replace(BEAM, strategy="mcts")
ASKS = replace(MCTS, options={"boost": True})


@pytest.mark.parametrize(
    ("spec", "mode", "boosted"),
    [
        (MCTS, ASKED, False),
        (ASKS, ASKED, True),
        (ASKS, OFF, False),
        (MCTS, ALL, True),
        (replace(MCTS, options={"boost": False}), ALL, False),
        (replace(MCTS, options={"parallel": 4}), ALL, False),
        (replace(MCTS, deterministic=True), ALL, False),
    ],
)
def test_request_and_setting_decide(spec: Request, mode: str, boosted: bool) -> None:
    resolved = decide_boost(spec, mode)
    assert is_boosted(resolved) is boosted
    assert decide_boost(resolved, mode) == resolved


def test_the_record_tells_that_a_request_was_not_boosted() -> None:
    assert decide_boost(ASKS, OFF).options == {"boost": False}


@pytest.mark.parametrize("spec", [BEAM, replace(MCTS, baseline=True)])
def test_other_searches_and_baselines_are_left_alone(spec: Request) -> None:
    assert decide_boost(spec, ALL) is spec


@pytest.mark.parametrize("option", [{"parallel": 2}, {"take": "arrival"}])
def test_a_boosted_run_has_no_fixed_number(option: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"has no {next(iter(option))} of its own"):
        decide_boost(replace(MCTS, options={"boost": True, **option}), ASKED)


SHAPES = {"replay_shape": {"window": 32}, "score_shape": {"window": 32}}
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
def test_what_time_or_load_decide_is_refused(fields: dict[str, Any], param: str, hint: str) -> None:
    with pytest.raises(RequestError, match="a deterministic search can't have") as error:
        replace(FLAGGED, **fields)
    assert error.value.param == param
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
    assert Request.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("self_test", "error", "said"),
    [
        (None, EngineDead, "self-test still runs"),
        ({"failure": "it takes too long"}, RequestError, r"did not end \(it takes too long"),
        ({**SHAPES, "score_shape": None}, RequestError, "equal bits for the verifier"),
        ({}, RequestError, "for the generator and the verifier"),
    ],
)
def test_both_engines_need_a_shape(
    self_test: dict[str, Any] | None, error: type[Exception], said: str
) -> None:
    check_shapes(SHAPES)
    with pytest.raises(error, match=said):
        check_shapes(self_test)


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
def test_paths_that_are_drawn_at_once(strategy: str, fields: dict[str, Any], paths: int) -> None:
    assert count_paths_at_once(replace(BEAM, strategy=strategy, **fields)) == paths


def test_groups_of_an_early_exit_are_drawn_one_after_the_other() -> None:
    spec = replace(BEAM, strategy="self_consistency", n=64, early_exit=ExitOptions())
    assert 1 < count_paths_at_once(spec) < 64


# ---------------------------------------------------------------- the rule entropy


UNSURE = replace(BEAM, step_rule="entropy")


def test_the_rule_is_the_runs() -> None:
    spec = replace(UNSURE, step_entropy=0.5, min_step_tokens=4)
    assert spec.entropy_rule == EntropyRule(threshold=0.5, min_tokens=4)
    assert replace(spec, step_rule="tokens").entropy_rule is None
    assert Request.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"step_entropy": -0.1}, "step_entropy"),
        ({"step_entropy": 3.01}, "step_entropy"),
        ({"step_entropy": float("nan")}, "step_entropy"),
        ({"min_step_tokens": 0}, "min_step_tokens"),
        ({"min_step_tokens": 256}, "min_step_tokens"),  # as many as a step may have
    ],
)
def test_values_out_of_bounds_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        replace(UNSURE, **fields)
    assert caught.value.param == param


def test_a_short_step_is_no_mistake_by_other_rules() -> None:
    assert replace(BEAM, max_step_tokens=4).min_step_tokens > 4


@pytest.mark.parametrize("strategy", ["best_of_n", "self_consistency", "probed_cot"])
def test_strategies_of_whole_answers_refuse_it(strategy: str) -> None:
    n = 1 if strategy == "probed_cot" else 8
    build_search(replace(BEAM, strategy=strategy, n=n))
    with pytest.raises(RequestError, match="whole answers") as caught:
        build_search(replace(UNSURE, strategy=strategy, n=n))
    assert "beam" in str(caught.value.hint)


@pytest.mark.parametrize("rule", STEP_RULES)
def test_nothing_is_drafted_behind_an_uncertain_end(rule: str) -> None:
    spec, engines = replace(BEAM, step_rule=rule), sim_engines()
    assert engines.optimizations.speculation
    search = build_search(spec)
    texts = StepTexts(codec=engines.generator.codec, rule=rule, max_step_tokens=8)
    client = SpeculationClient(search, spec, engines, texts)
    state, commands = search.start(spec.problem, spec.seed, spec.limits)
    expansions = [command for command in commands if isinstance(command, Expand)]
    assert (client.follow(state, commands) is not None) == (rule != "entropy")
    for child in expansions[0].children:
        assert (client.get_continuation(child.node) is None) is (rule == "entropy")
