"""The validation of a card: its parts, where it goes on, its report."""

import asyncio
import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.cli.doctor import BAD, GOOD
from scripts.bench.engine.replayed_search import read_levels, read_run
from scripts.bench.engine.served_pair import Server, build_command, find_served_pair
from scripts.card import certainty, determinism, validate
from scripts.card.parts import (
    Part,
    Plan,
    find_failed_checks,
    find_harm,
    find_other_bits,
    find_still_memory,
    find_unequal_cases,
    find_unequal_rungs,
    list_parts,
)
from scripts.card.results import Results
from tests.support.paths import ROOT


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    for folder in ("logs", "parts"):
        (tmp_path / folder).mkdir()
    return Plan(pair="bundled", problems=tmp_path / "p.jsonl", output=tmp_path, rehearse=True)


def build_part(code: str, **fields: Any) -> Part:
    return Part(name="a part", question="Is it so?", command=(sys.executable, "-c", code), **fields)


def test_a_part_passes_by_its_last_line(plan: Plan) -> None:
    found = validate.run_part(plan, build_part("print('working'); print('{\"same\": 3}')"))
    assert (found.status, found.figures, found.faults) == ("passed", {"same": 3}, [])
    assert (plan.output / "logs" / "a-part.log").read_text().startswith("working")


@pytest.mark.parametrize(
    ("code", "fields", "fault"),
    [
        ("import sys; sys.exit('no card')", {}, "exit code 1: no card"),
        ("print('done')", {}, "its last line is not JSON"),
        ("print('{}')", {"find_faults": lambda figures: ["wrong"]}, "wrong"),
        ("import time; time.sleep(60)", {"limit_s": 0.2}, "it took more than 0 s"),
    ],
)
def test_a_part_fails_and_says_why(
    plan: Plan, code: str, fields: dict[str, Any], fault: str
) -> None:
    found = validate.run_part(plan, build_part(code, **fields))
    assert (found.status, found.faults) == ("failed", [fault])


def test_it_goes_on_where_it_was_cut(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = plan.output / "repaired"
    code = f"import os; os.path.exists({str(marker)!r}) or exit(3); print('{{}}')"
    other = replace(build_part(code), name="another", question="And so?")
    parts = (build_part("print('{\"value\": 1}')"), other)
    monkeypatch.setattr(validate, "parse_plan", lambda *asked: plan)
    monkeypatch.setattr(validate, "list_parts", lambda plan: parts)
    ran: list[str] = []
    run_part = validate.run_part

    def record(plan: Plan, part: Part) -> validate.PartResult:
        ran.append(part.name)
        return run_part(plan, part)

    monkeypatch.setattr(validate, "run_part", record)

    def end() -> object:
        with pytest.raises(SystemExit) as raised:
            validate.main()
        return raised.value.code

    assert end() == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == {"passed": 1, "failed": ["another"]}
    assert "exit code 3" in (plan.output / "report.md").read_text()
    marker.touch()
    assert end() == 0
    assert ran == ["a part", "another", "another"]
    report = json.loads((plan.output / "report.json").read_text())
    assert [part["status"] for part in report["parts"]] == ["passed", "passed"]
    assert report["machine"]["torch"]
    assert "Nothing here was run on a card" in (plan.output / "report.md").read_text()


def test_another_command_is_run_again(plan: Plan) -> None:
    old, new = build_part("print('{}')"), build_part("print('{\"n\": 4}')")
    validate.write_result(plan, old, validate.run_part(plan, old))
    assert validate.read_result(plan, old) is not None
    assert validate.read_result(plan, new) is None


def test_what_counts_as_passed() -> None:
    bad = {"name": "gpu", "verdict": BAD, "detail": "no driver"}
    good = {"name": "disk", "verdict": GOOD, "detail": "9 GiB"}
    assert find_failed_checks({"value": [bad, good]}) == ["gpu: no driver"]
    names = ("runs", "same", "chose_same", "differ_from_tokens")
    counts = {"chosen": (2, 1, 1, 600), "early": (2, 1, 2, 512)}
    counts |= {"late": (2, 1, 2, 513), "equal": (2, 2, 2, 0)}
    moves = {"split_moves": 3, "offloads": 1}
    cases = {name: {**dict(zip(names, of, strict=True)), **moves} for name, of in counts.items()}
    cases["late"]["offloads"] = 0
    figures = {"invariant_tokens": 512, "kv_memory": "own", "cases": cases}
    unequal = find_unequal_cases(figures)
    assert unequal[1:] == ["chosen: 1 of 2 trees are equal", "early: 1 of 2 trees are equal"]
    assert unequal[0] == "late: no KV was offloaded, by own"
    rungs = [{"rung": "+P", "n": 8, "same_trees": 0.5}, {"rung": "stock", "n": 8, "same_trees": 1}]
    assert find_unequal_rungs({"rungs": rungs}) == ["+P, n = 8: 50% of the trees are equal"]


def test_memory_that_stands_still_fails() -> None:
    moves, stands = {"mapped": 8.0, "unmapped": 8.0}, {"mapped": 0.0, "unmapped": 0.0}
    both = {"generator": moves, "verifier": moves}
    how = {"kv_memory": {"generator": "os", "verifier": "torch"}, "tokens_identical": [True]}
    how |= {"moved_mib": both, "offloaded_mib": both}
    assert not find_still_memory(how)
    for key, by in (("moved_mib", "its share"), ("offloaded_mib", "offloading")):
        assert find_still_memory({**how, key: {**both, "verifier": stands}}) == [
            f"the verifier gave back no memory by {by}: torch",
            f"the verifier took no memory by {by}: torch",
        ]
    changed = {**how, "tokens_identical": [True, False]}
    assert find_still_memory(changed) == ["the tokens changed 1 times"]


def test_harm_of_faults_is_found() -> None:
    quiet = {"times": 2, "lost": 0, "other_trees": 0, "leaked_blocks": 0}
    killed, none = {**quiet, "lost": 1, "leaked_blocks": 7}, {**quiet, "times": 0}
    faults = {"stopped": quiet, "killed": killed, "out of memory": none}
    harm = find_harm({"faults": faults, "daemon": {"alive": False}})
    assert harm[:2] == ["killed: 1 lost", "killed: 7 leaked_blocks"]
    assert harm[2:] == ["out of memory: it never happened", "the daemon died"]
    assert not find_harm({"faults": {"stopped": quiet}, "daemon": {"alive": True}})


@pytest.mark.parametrize("rehearse", [True, False])
def test_every_part_runs_a_module_that_is_there(tmp_path: Path, rehearse: bool) -> None:
    plan = Plan(pair="bundled", problems=tmp_path, output=tmp_path, rehearse=rehearse)
    for part in list_parts(plan):
        module = part.command[2]
        if module.startswith("scripts."):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), part.name


def test_the_pair_asked_for_is_measured(plan: Plan) -> None:
    """By all parts but those that the page names."""
    without = {"doctor", "engine tests", "faults"}
    for part in list_parts(replace(plan, pair="another", rehearse=False)):
        named = dict(zip(part.command, part.command[1:], strict=False)).get("--pair")
        assert named == (None if part.name in without else "another"), part.name


def test_vllm_serves_with_its_own_defaults(tmp_path: Path) -> None:
    """Nothing of ours is on its command line: no scheduler class, no worker extension."""
    spec = find_served_pair("bundled").pair.generator
    extra = {"hf_overrides": {"num_labels": 1}, "async_scheduling": False}
    command = build_command(Server(spec=spec, folder=tmp_path, extra=extra), 8000)
    assert "flashedge" not in " ".join(command[3:]).replace(str(tmp_path), "")
    assert command[command.index("--hf-overrides") + 1] == '{"num_labels": 1}'
    assert command[command.index("--max-model-len") + 1] == str(spec.max_model_len)
    assert "--no-async-scheduling" in command


def test_a_tree_is_read_as_requests_level_by_level() -> None:
    rows = ((None, [], None), (0, [7, 8], 0.5), (0, [9], None), (1, [4, 4, 4], 0.5))
    names = ("parent", "token_ids", "score")
    nodes = [{"id": i, **dict(zip(names, row, strict=True))} for i, row in enumerate(rows)]
    found = {
        "tree": {"nodes": nodes},
        "usage": {"prompt_tokens": 2, "speculation": {"drawn_tokens": 5, "kept_tokens": 1}},
        "timing": {"generate_s": 1.5, "verify_s": 0.25},
    }
    first, second = levels = read_levels(found)
    asked = [(node.path, node.ids, node.is_scored) for node in first]
    assert asked == [((5, 5), (7, 8), True), ((5, 5), (9,), False)]
    assert [(node.path, node.ids) for node in second] == [((5, 5, 7, 8), (4, 4, 4))]
    run = read_run(found, levels, seconds=2.0)
    assert (run.tokens, run.in_a_row, run.drawn, run.kept) == (6, 5, 5, 1)


def test_a_part_that_fails_leaves_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "found.json", "p")

    async def measure() -> None:
        async with results.part("first"):
            raise KeyError("no such server")
        results.add("second", {"seconds": 1.0})

    asyncio.run(measure())
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["first failed"] == "KeyError('no such server')"
    assert written["second"] == {"seconds": 1.0}
    assert results.failed == ["first"]


def test_a_deterministic_request_that_differs_is_a_fault() -> None:
    plain = {"deterministic": False, "logprobs_differ": 9, "requests": 64}
    flagged = {**plain, "deterministic": True, "logprobs_differ": 0}
    assert find_other_bits({"cases": [plain, flagged]}) == []
    (no_shape,) = find_other_bits({"cases": [plain]})
    assert no_shape == "the self-test found no shape for deterministic requests"
    (differing,) = find_other_bits({"cases": [{**flagged, "logprobs_differ": 2}]})
    assert differing == "2 of 64 deterministic requests differ"


def test_scoring_that_its_minutes_cut_off_goes_on(plan: Plan) -> None:
    asked = Namespace(samples=Path("s.jsonl"), skip=5, limit=1000, cut=300, minutes=5.0)
    scores, live, votes = certainty.list_parts(plan, asked)
    assert scores.find_faults({"problems": 2, "complete": False}) != []
    assert scores.find_faults({"problems": 2, "complete": True}) == [], "the file has no more"
    assert scores.command[scores.command.index("--cut") + 1] == "300"
    ways = json.loads(live.command[-1])
    assert {way["pair"] for way in ways.values()} == {"bundled"}
    assert scores.command[4] == votes.command[3], "what the first part writes"
    assert (votes.needs, votes.command[-1]) == ("scores", "6"), "as many as are scored"


def test_a_part_waits_for_what_it_needs(plan: Plan) -> None:
    """It is not run on what is there, so that no verdict of it is kept."""
    marker = plan.output / "repaired"
    first = build_part(f"import os; os.path.exists({str(marker)!r}) or exit(3); print('{{}}')")
    second = replace(build_part("print('{\"value\": 1}')"), name="second", needs=first.name)
    with pytest.raises(SystemExit):
        validate.run_parts(plan, (first, second))
    found = validate.read_result(plan, second)
    assert found is not None
    assert (found.status, found.figures) == ("failed", None)
    assert first.name in found.faults[0]
    marker.touch()
    with pytest.raises(SystemExit):
        validate.run_parts(plan, (first, second))
    found = validate.read_result(plan, second)
    assert found is not None
    assert (found.status, found.figures) == ("passed", {"value": 1})


def test_ways_of_determinism_are_compared_with_the_default_of_their_round() -> None:
    def run(turn: int, way: str, speed: float) -> dict[str, Any]:
        figures = dict.fromkeys(determinism.RATIOS, speed)
        counters = {"stock_steps": 1, "shared_steps": 2, "rollbacks": 3, "recomputed_tokens": 4}
        return {"round": turn, "percent": 50, "way": way, **figures, **counters}

    runs = [run(0, "default", 10.0), run(0, "rollback", 8.0), run(0, "invariant kernels", 5.0)]
    runs += [run(1, "default", 20.0), run(1, "rollback", 18.0)]
    rollback, invariant = determinism.compare(runs)
    assert (rollback["way"], rollback["rounds"], rollback["rollbacks"]) == ("rollback", 2, 6)
    assert rollback["tokens_per_s"] == pytest.approx(0.85)
    assert rollback["from"] == pytest.approx(0.8)
    assert (invariant["rounds"], invariant["p50_s"]) == (1, 0.5)
