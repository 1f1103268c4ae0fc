"""Calibrations on disk, and which early exit a run gets."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.certainty.policies import Rule
from flashedge.config import Config
from flashedge.errors import ConfigError, Conflict
from flashedge.models.folders import fingerprint_pair
from flashedge.models.registry import find_pair
from flashedge.runtime.request.calibrations import (
    Calibration,
    calibrations_file,
    collect_settings,
    load_calibrations,
    parse_calibrations,
    save_calibration,
)
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import Plan, decide_exit
from flashedge.runtime.request.validation import Request
from tests.support.runtime_rig import BEAM
from tests.support.service_rig import Serve, log_of

SC = replace(BEAM, strategy="self_consistency", selection="majority", early_exit=ExitOptions())
RULE = Rule(policy="every_step", detect=2, thresholds=(("entropy", 0.0),))


def calibration(**fields: Any) -> Calibration:
    told = {"pair": "bundled", "strategy": "self_consistency", "fingerprint": "f" * 16}
    made = {"rule": RULE, "provenance": {"date": "2026-01-02", "n": 8}, **told, **fields}
    return Calibration(settings=collect_settings(SC), **made)


def settled(request: Request, config: Config, fingerprint: str = "f" * 16) -> Plan:
    return decide_exit(request, config, lambda: fingerprint)


def test_the_newest_of_a_pair_and_strategy_is_kept(config: Config) -> None:
    assert load_calibrations(config) == ()
    other = calibration(strategy="mcts", rule=replace(RULE, detect=3))
    for made in (calibration(rule=None), other, calibration()):
        assert save_calibration(made, config) == calibrations_file(config)
    assert load_calibrations(config) == (other, calibration())
    assert [f.name for f in config.config_dir.iterdir()] == ["calibrations.json"]


BY_LUCK = {"policy": "luck", "detect": 1, "thresholds": [["entropy", 1]], "curve": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "calibrations": []}',
        '{"version": 1, "calibrations": [{"pair": "bundled"}]}',
        json.dumps({"version": 1, "calibrations": [{"rule": BY_LUCK}]}),
    ],
)
def test_a_broken_file_is_named(config: Config, text: str) -> None:
    config.config_dir.mkdir(parents=True)
    calibrations_file(config).write_text(text)
    for use in (lambda: load_calibrations(config), lambda: save_calibration(calibration(), config)):
        with pytest.raises(ConfigError, match=r"calibrations\.json"):
            use()
    assert calibrations_file(config).read_text() == text
    unasked = replace(SC, early_exit=None)
    assert settled(unasked, config).request.early_exit is None, "it isn't asked"


def test_a_calibration_by_a_removed_policy_is_passed_over(config: Config) -> None:
    save_calibration(calibration(), config)
    stored = json.loads(calibrations_file(config).read_text())
    stored["calibrations"][0]["rule"] |= {"policy": "initial_curve", "curve": [[1.0, 2]]}
    calibrations_file(config).write_text(json.dumps(stored))
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


def test_a_calibration_that_does_not_fit_is_left_aside(config: Config) -> None:
    save_calibration(calibration(), config)
    found = settled(SC, config, fingerprint="another")
    assert (found.request.early_exit, found.early_exit_source) == (ExitOptions(), "defaults")
    assert "2026-01-02 is not used: the pair bundled has changed" in (found.early_exit_note or "")
    found = settled(replace(SC, aggregate="min"), config)
    assert found.early_exit_source == "defaults"
    assert "other aggregate" in (found.early_exit_note or "")


def test_a_calibration_may_say_never(config: Config) -> None:
    save_calibration(calibration(rule=None), config)
    found = settled(SC, config)
    assert (found.request.early_exit, found.early_exit_source) == (None, "calibration")
    assert "no early exit that pays" in (found.early_exit_note or "")


async def test_a_run_tells_whose_early_exit_it_has(serve: Serve) -> None:
    rig = await serve(queue_limit=8)
    fits = fingerprint_pair(find_pair("bundled", rig.config), rig.config)
    save_calibration(calibration(fingerprint=fits), rig.config)
    run = rig.service.submit(SC)
    result = await run.result()
    assert (result["early_exit_source"], result["early_exit_note"]) == ("calibration", None)
    assert result["cut_by"] == "certainty"
    assert len(result["completions"]) == 2
    started = (await log_of(rig.service.run(run.id)))[0][1]
    assert started.config["early_exit_source"] == "calibration"
    assert started.config["early_exit"]["detect"] == 2

    save_calibration(calibration(), rig.config)  # no restart is needed
    result = await rig.service.submit(SC).result()
    assert result["early_exit_source"] == "defaults"
    assert "has changed" in result["early_exit_note"]
    whole = await rig.service.submit(replace(SC, early_exit=None)).result()
    assert (whole["early_exit_source"], whole["early_exit_note"]) == (None, None)


async def test_a_named_run_stays_the_same_run_when_calibrated_since(serve: Serve) -> None:
    rig = await serve(queue_limit=8)
    first = rig.service.submit(SC, run_id="run-mine-0123456789")
    await first.result()
    fits = fingerprint_pair(find_pair("bundled", rig.config), rig.config)
    save_calibration(calibration(fingerprint=fits), rig.config)
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
    calibrations_file(config).write_text("{}")
    with pytest.raises(ConfigError):
        load_calibrations(config)
    calibrations_file(config).unlink()
    assert load_calibrations(config) == ()
