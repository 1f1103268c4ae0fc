"""What the daemon decides: boosting, deterministic searches, the paths drawn at once; and the rule
entropy in a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest
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
from flashedge.types import STEP_RULES, Problem, Sampling
from tests.support.runtime_rig import BEAM, sim_engines

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
def test_request_and_setting_decide(options: dict[str, Any], mode: str, boosted: bool) -> None:
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
def test_what_time_or_load_decide_is_refused(fields: dict[str, Any], param: str, hint: str) -> None:
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
def test_paths_that_are_drawn_at_once(strategy: str, fields: dict[str, Any], paths: int) -> None:
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


async def test_the_simulated_generator_refuses_it() -> None:
    generator = sim_engines().generator
    request = ExtendRequest(
        token_ids=(1, 2), seed=1, sampling=Sampling(), max_tokens=8, to_boundary=True
    )
    generator.extend(request)
    with pytest.raises(RequestError, match="no entropies"):
        generator.extend(replace(request, entropy_rule=EntropyRule(threshold=1.0, min_tokens=1)))


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
