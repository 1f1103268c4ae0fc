"""What the daemon decides: boosting, deterministic searches, the paths drawn at once; and the rule
entropy in a request."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.certainty.policies import Rule
from flashedge.config import Config
from flashedge.errors import ConfigError, Conflict, EngineDead, RequestError
from flashedge.models.folders import fingerprint_pair
from flashedge.models.registry import find_pair
from flashedge.runtime.drive.segments import StepSplitter
from flashedge.runtime.drive.speculation_client import SpeculationClient
from flashedge.runtime.request import plan
from flashedge.runtime.request.calibrations import (
    Calibration,
    collect_settings,
    load_calibrations,
    locate_calibrations,
    parse_calibrations,
    save_calibration,
)
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import ALL, ASKED, OFF, Plan, decide_boost, decide_exit
from flashedge.runtime.request.strategies import build_search, count_paths_at_once
from flashedge.runtime.request.validation import Request
from flashedge.search.base import Expand
from flashedge.search.step_rules import EntropyRule
from flashedge.types import STEP_RULES
from tests.support.runtime_rig import BEAM, sim_engines
from tests.support.service_rig import Serve, log_of

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
    assert plan.is_boosted(resolved) is boosted
    assert decide_boost(resolved, mode) == resolved
    assert decide_boost(ASKS, OFF).options == {"boost": False}, "the record tells it"
    for other in (BEAM, replace(MCTS, baseline=True)):
        assert decide_boost(other, ALL) is other


@pytest.mark.parametrize(("option", "value"), [("parallel", 2), ("take", "arrival")])
def test_a_boosted_run_has_no_fixed_number(option: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"has no {option} of its own"):
        decide_boost(replace(MCTS, options={"boost": True, option: value}), ASKED)


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


def test_token_budgets_and_a_fixed_number_of_rollouts_are_allowed() -> None:
    fixed = {"parallel": 4, "take": "launch", "boost": False}
    for fields in ({"token_budget": 100}, {"strategy": "mcts", "options": fixed}):
        spec = replace(FLAGGED, **fields)
        assert Request.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("self_test", "error", "said"),
    [
        (None, EngineDead, "self-test still runs"),
        ({**SHAPES, "score_shape": None}, RequestError, "equal bits for the verifier"),
        ({}, RequestError, "for the generator and the verifier"),
    ],
)
def test_both_engines_need_a_shape(
    self_test: dict[str, Any] | None, error: type[Exception], said: str
) -> None:
    plan.check_shapes(SHAPES)
    with pytest.raises(error, match=said):
        plan.check_shapes(self_test)


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
    votes = replace(BEAM, strategy="self_consistency", n=64, early_exit=ExitOptions())
    assert 1 < count_paths_at_once(votes) < 64, "groups are drawn one after the other"


# ---------------------------------------------------------------- the rule entropy


UNSURE = replace(BEAM, step_rule="entropy")


def test_the_rule_is_the_runs() -> None:
    spec = replace(UNSURE, step_entropy=0.5, min_step_tokens=4)
    assert spec.entropy_rule == EntropyRule(threshold=0.5, min_tokens=4)
    assert replace(spec, step_rule="tokens").entropy_rule is None
    assert Request.from_json(spec.to_json()) == spec
    assert replace(BEAM, max_step_tokens=4).min_step_tokens > 4, "no mistake by other rules"


@pytest.mark.parametrize(
    ("param", "values"),
    [("step_entropy", (-0.1, 3.01, float("nan"))), ("min_step_tokens", (0, BEAM.max_step_tokens))],
)
def test_values_out_of_bounds_are_refused(param: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(RequestError) as caught:
            replace(UNSURE, **{param: value})
        assert caught.value.param == param


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
    texts = StepSplitter(codec=engines.generator.codec, rule=rule, max_step_tokens=8)
    client = SpeculationClient(search, spec, engines, texts)
    state, commands = search.start(spec.problem, spec.seed, spec.limits)
    expansions = [command for command in commands if isinstance(command, Expand)]
    assert (client.follow(state, commands) is not None) == (rule != "entropy")
    for child in expansions[0].children:
        assert (client.get_continuation(child.node) is None) is (rule == "entropy")


# ---------------------------------------------------------------- calibrations


SC = replace(BEAM, strategy="self_consistency", selection="majority", early_exit=ExitOptions())
RULE = Rule(policy="every_step", detect=2, thresholds=(("entropy", 0.0),))


def calibration(**fields: Any) -> Calibration:
    told = {"pair": "bundled", "strategy": "self_consistency", "fingerprint": "f" * 16}
    made = {"rule": RULE, "provenance": {"date": "2026-01-02", "n": 8}, **told, **fields}
    return Calibration(settings=collect_settings(SC), **made)


def save_fitting(config: Config) -> None:
    """One that was made with the pair as it is."""
    fingerprint = fingerprint_pair(find_pair("bundled", config), config)
    save_calibration(calibration(fingerprint=fingerprint), config)


def settled(request: Request, config: Config, fingerprint: str = "f" * 16) -> Plan:
    return decide_exit(request, config, lambda: fingerprint)


def test_the_newest_of_a_pair_and_strategy_is_kept(config: Config) -> None:
    assert load_calibrations(config) == ()
    other = calibration(strategy="mcts", rule=replace(RULE, detect=3))
    for made in (calibration(rule=None), other, calibration()):
        assert save_calibration(made, config) == locate_calibrations(config)
    assert load_calibrations(config) == (other, calibration())
    assert [f.name for f in config.config_dir.iterdir()] == ["calibrations.json"]


BY_LUCK = {"policy": "luck", "detect": 1, "thresholds": [["entropy", 1]], "curve": []}


def encode(calibrations: list[dict[str, Any]], version: int = 1) -> str:
    return json.dumps({"version": version, "calibrations": calibrations})


@pytest.mark.parametrize(
    "text", ["", "[]", encode([], 2), encode([{"pair": "bundled"}]), encode([{"rule": BY_LUCK}])]
)
def test_a_broken_file_is_named(config: Config, text: str) -> None:
    config.config_dir.mkdir(parents=True)
    locate_calibrations(config).write_text(text)
    for use in (lambda: load_calibrations(config), lambda: save_calibration(calibration(), config)):
        with pytest.raises(ConfigError, match=r"calibrations\.json"):
            use()
    assert locate_calibrations(config).read_text() == text
    unasked = replace(SC, early_exit=None)
    assert settled(unasked, config).request.early_exit is None, "it isn't asked"


def test_a_calibration_by_a_removed_policy_is_passed_over(config: Config) -> None:
    save_calibration(calibration(), config)
    stored = json.loads(locate_calibrations(config).read_text())
    stored["calibrations"][0]["rule"] |= {"policy": "initial_curve", "curve": [[1.0, 2]]}
    locate_calibrations(config).write_text(json.dumps(stored))
    assert load_calibrations(config) == ()
    assert settled(SC, config).early_exit_source == "defaults"


def test_request_then_calibration_then_defaults(config: Config) -> None:
    assert settled(SC, config).early_exit_source == "defaults"
    save_calibration(calibration(), config)
    found = settled(SC, config)
    assert found.request.early_exit == ExitOptions().take_rule(RULE)
    assert (found.early_exit_source, found.early_exit_note) == ("calibration", None)
    asked = replace(SC, early_exit=ExitOptions(detect=4))
    assert settled(asked, config) == Plan(request=asked, early_exit_source="request")
    patient = settled(replace(SC, early_exit=ExitOptions(give_up_after=9)), config)
    assert patient.request.early_exit == replace(ExitOptions().take_rule(RULE), give_up_after=9)
    for other in (replace(SC, strategy="best_of_n"), replace(SC, pair="other")):
        assert settled(other, config).early_exit_source == "defaults"


def test_a_calibration_that_does_not_fit_is_left_aside_or_may_say_never(config: Config) -> None:
    save_calibration(calibration(), config)
    found = settled(SC, config, fingerprint="another")
    assert (found.request.early_exit, found.early_exit_source) == (ExitOptions(), "defaults")
    assert "2026-01-02 is not used: the pair bundled has changed" in (found.early_exit_note or "")
    found = settled(replace(SC, aggregate="min"), config)
    assert found.early_exit_source == "defaults"
    assert "other aggregate" in (found.early_exit_note or "")
    save_calibration(calibration(rule=None), config)  # it may say never
    found = settled(SC, config)
    assert (found.request.early_exit, found.early_exit_source) == (None, "calibration")
    assert "no early exit that pays" in (found.early_exit_note or "")


async def test_a_run_tells_whose_early_exit_it_has(serve: Serve) -> None:
    rig = await serve(queue_limit=8)
    save_fitting(rig.config)
    run = rig.service.submit(SC)
    result = await run.result()
    assert (result["early_exit_source"], result["early_exit_note"]) == ("calibration", None)
    assert (result["cut_by"], len(result["completions"])) == ("certainty", 2)
    started = (await log_of(rig.service.run(run.id)))[0][1]
    assert started.config["early_exit_source"] == "calibration"
    assert started.config["early_exit"]["detect"] == 2


async def test_a_named_run_stays_the_same_run_when_calibrated_since(serve: Serve) -> None:
    rig = await serve(queue_limit=8)
    first = rig.service.submit(SC, run_id="run-mine-0123456789")
    await first.result()
    save_fitting(rig.config)
    assert rig.service.submit(SC, run_id="run-mine-0123456789").id == first.id
    with pytest.raises(Conflict):
        rig.service.submit(replace(SC, early_exit=None), run_id="run-mine-0123456789")


def test_a_fingerprint_is_of_the_files(config: Config, tmp_path: Path) -> None:
    pair = find_pair("bundled", config)
    first = fingerprint_pair(pair, config)
    folder = shutil.copytree(pair.generator.source, tmp_path / "elsewhere")
    moved = replace(pair, generator=replace(pair.generator, source=str(folder)))
    assert fingerprint_pair(moved, config) == first
    weights = next(folder.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    retrained = fingerprint_pair(moved, config)
    shutil.copy(Path(pair.generator.source) / weights.name, weights)
    colder = replace(moved, sampling=replace(moved.sampling, temperature=0.1))
    (folder / "config.json").write_text(json.dumps({}))
    found = {first, retrained, fingerprint_pair(moved, config), fingerprint_pair(colder, config)}
    assert len(found) == 4
    gone = replace(moved, generator=replace(moved.generator, source=str(tmp_path / "gone")))
    assert fingerprint_pair(gone, config) not in found


def test_the_file_is_parsed_again_only_when_it_changed(config: Config) -> None:
    save_calibration(calibration(), config)
    (found,) = load_calibrations(config)
    before = parse_calibrations.cache_info().misses
    for _ in range(3):
        assert load_calibrations(config) == (found,)
    assert parse_calibrations.cache_info().misses == before
    locate_calibrations(config).write_text("{}")
    with pytest.raises(ConfigError):
        load_calibrations(config)
    locate_calibrations(config).unlink()
    assert load_calibrations(config) == ()
