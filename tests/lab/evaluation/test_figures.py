"""Figures of an evaluation, on records whose every figure is known by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from scripts.lab.evaluation.figures import (
    build_report,
    compare_beams,
    grade_choices,
    measure_step_tokens,
)
from scripts.lab.evaluation.measure import Chain, ProblemRecord


def chain(answer: str | None, *scores: float, tokens: tuple[int, ...] = ()) -> Chain:
    """One whose answer is right if it is "4"."""
    return Chain(text="", answer=answer, right=answer == "4", scores=scores, step_tokens=tokens)


def record(*chains: Chain, greedy: str = "4", beams: dict[int, str], **known: Any) -> ProblemRecord:
    given = {"index": 0, "id": "0", "family": None, "steps": None, **known}
    found = {n: chain(answer) for n, answer in beams.items()}
    return ProblemRecord(**given, greedy=chain(greedy), chains=chains, beams=found)


FIRST = record(
    chain("5", 0.9, 0.2, tokens=(10, 4)),
    chain("5", 0.8, 0.3, tokens=(20, 4)),
    chain("4", 0.5, 0.9, tokens=(30, 4)),
    chain("4", 0.6, 0.8, tokens=(20, 4, 8)),
    beams={2: "5", 4: "4"},
    family="sum",
    steps=10,
)
SECOND = record(
    chain("4", 0.1),
    chain(None),
    chain("7", 0.2),
    chain("7", 0.05),
    greedy="7",
    beams={2: "4", 4: "4"},
    index=1,
    id="1",
    family="word",
    steps=9,
)
BOTH = (FIRST, SECOND)


def test_every_way_of_choosing() -> None:
    table = grade_choices(BOTH, (2, 4))
    hows = ("last", "min", "prod")
    assert table == {
        "greedy": [1, 0],
        "sample": [0.5, 0.25],
        **{name: [0, 1] for name in ("pass@2", "majority@2", "beam-2")},
        **{f"best-of-2 ({how})": [0, 1] for how in hows},
        **{f"weighted vote@2 ({how})": [0, 1] for how in hows},
        "pass@4": [1, 1],
        "majority@4": [0, 0],  # 2:2 goes to the earlier answer
        **{f"best-of-4 ({how})": [1, 0] for how in hows},
        **{f"weighted vote@4 ({how})": [1, 0] for how in hows},
        "beam-4": [1, 1],
    }
    differing = record(chain("4", 0.2, 0.9), chain("5", 0.6, 0.7), beams={2: "4"})
    table = grade_choices([differing], (2,))
    assert table["best-of-2 (last)"] == [1]
    assert table["best-of-2 (min)"] == table["best-of-2 (prod)"] == [0]


def test_without_a_judge_of_steps_there_is_no_beam_search() -> None:
    without = [replace(record, beams={}) for record in BOTH]
    report = build_report(without, (2, 4))
    assert report["paired"] == {}
    assert not [name for name in report["accuracy"] if name.startswith("beam")]
    assert "best-of-4 (last)" in report["accuracy"]
    assert "beam-4" not in report["by_steps"]["9"]


def test_differences_are_paired() -> None:
    told = compare_beams(grade_choices(BOTH, (2, 4)), (2, 4))
    values = {name: figure["value"] for name, figure in told.items()}
    assert (values["beam-4 minus greedy"], values["beam-2 minus greedy"]) == (0.5, 0.0)
    vote = told["beam-4 minus majority@4"]
    assert (vote["value"], vote["low"], vote["high"]) == (1, 1, 1)


def test_step_tokens_and_their_spread() -> None:
    told = measure_step_tokens(BOTH)
    assert told["mean"]["value"] == round((80 + 16 + 8) / 9, 4)
    assert told["max"]["value"] == 30
    assert told["spread (max/mean of a problem's step)"]["value"] == (30 / 20 + 1) / 2
    assert told["mean"]["count"] == 1  # the other problem's steps were not counted


def test_the_whole_report_is_json_with_a_null_for_what_is_not_there() -> None:
    report = build_report(BOTH, (2, 4))
    json.loads(json.dumps(report, allow_nan=False))
    assert report["problems"] == 2
    assert list(report["by_family"]) == ["sum", "word"]
    assert list(report["by_steps"]) == ["9", "10"]
    assert report["by_family"]["sum"]["greedy"]["value"] == 1
    assert report["by_steps"]["9"]["beam-4"] == {"value": 1, "low": 1, "high": 1, "count": 1}
    auc = report["verifier"]["within-problem AUC (last)"]
    assert (auc["value"], auc["count"]) == (pytest.approx((1 + 2 / 3) / 2, abs=1e-4), 2)
    assert 0 < report["verifier"]["pooled AUC (last), no gate"]["value"] < 1
    assert sum(row["count"] for row in report["reliability"]) == 11
    empty = build_report([], (2,))
    json.dumps(empty, allow_nan=False)
    assert empty["accuracy"]["greedy"] == {"value": None, "low": None, "high": None, "count": 0}
    assert empty["by_family"] == {}


def test_calibration_takes_the_chain_s_end_as_the_label_of_its_steps() -> None:
    told = record(chain("4", 0.75, 0.75), chain("5", 0.75, 0.75), beams={2: "4"})
    error = build_report([told], (2,))["verifier"]["expected calibration error"]
    assert error["value"] == pytest.approx(0.25)


def test_the_best_is_chosen_among_those_with_an_answer() -> None:
    """As the daemon chooses: the highest score of all may be of a chain that was cut off."""
    cut = record(chain(None, 0.9), chain("4", 0.6), chain("7", 0.2), beams={})
    table = grade_choices([cut], (1, 3))
    assert table["best-of-3 (last)"] == [1]
    assert table["best-of-1 (last)"] == [0]
