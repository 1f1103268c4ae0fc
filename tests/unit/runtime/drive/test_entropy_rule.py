"""The rule entropy in a run's request: what is refused, and what is not drafted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest
from flashedge.errors import RequestError
from flashedge.runtime.drive.segments import StepTexts
from flashedge.runtime.drive.speculation_client import SpeculationClient
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import build_search
from flashedge.search.base import Expand
from flashedge.search.steps import EntropyRule
from flashedge.types import STEP_RULES, Sampling
from tests.support.runtime_rig import BEAM, sim_engines

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
