"""scripts.bench.lengths: what the studies of output lengths count and read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from scripts.bench.lengths import fits, rescore, sample_lengths
from scripts.bench.lengths.prompts import (
    Prompt,
    read_sampled,
    read_trace_steps,
    read_trace_totals,
)


def build(lengths: list[int], cut: list[bool] | None = None) -> Prompt:
    return Prompt(
        outputs=tuple((tokens,) for tokens in lengths),
        is_cut=tuple(cut or [False] * len(lengths)),
    )


def test_the_trace_has_eight_outputs_of_a_hundred_problems() -> None:
    totals, steps = read_trace_totals(), read_trace_steps()
    assert len(totals) == len(steps) == 100
    assert {len(prompt.outputs) for prompt in totals} == {8}
    assert [sum(one.lengths) for one in totals] == [sum(one.lengths) for one in steps]
    assert not any(flag for prompt in steps for flag in prompt.is_censored)


def test_only_the_last_length_of_a_cut_output_is_a_bound() -> None:
    prompt = Prompt(outputs=((5, 6), (7,), (8, 9)), is_cut=(True, False, True))
    assert prompt.lengths == [5, 6, 7, 8, 9]
    assert prompt.is_censored == [False, True, False, False, True]
    first, second = prompt.split()
    assert (first.lengths, second.lengths) == ([5, 6, 8, 9], [7])
    assert first.is_cut == (True, True)


def test_lengths_near_a_quantile_count_in_part() -> None:
    below = fits.count_below(np.array([9.0, 10.0, 10.25, 30.0]), build([10, 20]))
    assert below == [0, 0.25, 0.375, 1]


def test_a_cut_length_counts_only_where_it_can_tell() -> None:
    prompt = build([10, 15], [False, True])
    below = fits.count_below(np.array([12.0, 18.0]), prompt)
    assert below == [0.5, 1.0]  # 15 tokens or more are above 12, but may be below 18
    alone = fits.count_below(np.array([12.0, 18.0]), build([15], [True]))
    assert alone[0] == 0
    assert math.isnan(alone[1])


def test_a_set_of_prompts_of_a_family_prefers_it() -> None:
    draw = np.random.default_rng(0)
    lengths = np.rint(np.exp(draw.normal(5.0, 0.4, (12, 40)))).astype(int).tolist()
    found = fits.study_set("made", [build(row) for row in lengths], draws=0)
    families = found["families"]
    assert found["lengths"] == 40
    assert families["log_normal"]["passes"][0] == 1
    assert families["exponential"]["passes"][0] < 0.2
    assert families["log_t"]["passes_bootstrap"] is None
    assert families["log_normal"]["calibration_error"] < 0.06
    assert (
        families["log_normal"]["calibration_error"] < families["exponential"]["calibration_error"]
    )
    assert families["log_t"]["log_score"] == [0, 0, 0]
    assert families["exponential"]["log_score"][2] < 0
    table = fits.format_set("made", found)
    assert "**made: 12 prompts, 40.0 lengths each**" in table
    assert "| weibull | " in table


def test_prompts_with_cut_outputs_are_not_tested_but_predicted() -> None:
    prompt = build([100, 120, 90, 130, 110, 140, 150, 150], [False] * 6 + [True, True])
    found = fits.measure_prompt("log_t", prompt, draws=0, seed=0)
    assert found["passes"] is None
    assert len(found["below"]) == len(fits.LEVELS)
    assert math.isfinite(found["log_score"])


def test_the_calibration_is_drawn(tmp_path: Path) -> None:
    found = fits.study_set("made", [build([100, 120, 90, 130])], draws=0)
    fits.draw_set(tmp_path / "made.png", "made", found)
    assert (tmp_path / "made.png").read_bytes().startswith(b"\x89PNG")


def test_answers_are_read_in_the_order_of_their_choices() -> None:
    choices = [
        {"index": 1, "token_ids": [1, 2, 3], "finish_reason": "length"},
        {"index": 0, "token_ids": [1, 2], "finish_reason": "stop"},
    ]
    found = sample_lengths.parse_answer({"choices": choices})
    assert found == {"lengths": [2, 3], "is_cut": [False, True]}


def test_sampling_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path, problems = tmp_path / "sampled.jsonl", [{"id": "a"}, {"id": "b"}]
    assert sample_lengths.list_missing(problems, path) == problems
    row = {"id": "a", "prompt_tokens": 9, "lengths": [5, 7], "is_cut": [False, True]}
    path.write_text(json.dumps(row) + "\n")
    assert sample_lengths.list_missing(problems, path) == problems[1:]
    assert read_sampled(path) == [build([5, 7], [False, True])]


def test_a_rescored_board_has_all_programs() -> None:
    assert len(rescore.build_board(70)) == 70
    calls: list[int] = []
    timed = rescore.time_calls(calls.append, 20)
    assert calls == list(range(-2, 20))
    assert timed["p99_ms"] >= timed["median_ms"] >= 0


@pytest.mark.parametrize("script", [fits, rescore, sample_lengths])
def test_every_script_says_how_it_is_called(script: object) -> None:
    name = str(getattr(script, "__name__", ""))
    assert f"python -m {name}" in (script.__doc__ or "")
