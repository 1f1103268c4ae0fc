"""The scripts of the simulated study: what is fitted is not what is reported, and the tables."""

from itertools import pairwise
from typing import Any

import pytest

from scripts.bench.flashtts import grid, paper_figures, paper_rules, sensitivity
from scripts.bench.flashtts.calibration import (
    FITTED,
    PUBLIC_S,
    Load,
    bound_sequence_s,
    fit_overheads,
    predict_errors,
)
from scripts.bench.flashtts.study import (
    PAIRS,
    WIDTHS,
    average_problems,
    build_cell,
    choose_problem_count,
    climb_ladder,
    format_gain,
    format_table,
)
from scripts.lab.benchmark.ladder import RUNGS

LOADS = {n: Load(roofline_s=5 + n / 20, steps=400 + 2 * n, sequences=400.0 * n) for n in PUBLIC_S}


# ---------------------------------------------------------------- calibration


def test_the_two_points_are_met_and_only_the_others_are_judged() -> None:
    """The artifact's evaluation tunes on what it reports."""
    found = fit_overheads(LOADS, FITTED)
    for n in FITTED:
        assert LOADS[n].seconds(*found) == pytest.approx(PUBLIC_S[n])
    told = predict_errors(LOADS, FITTED)
    assert set(told) == {f"n={n}" for n in PUBLIC_S if n not in FITTED}
    assert told["n=16"] == pytest.approx(LOADS[16].seconds(*found) / PUBLIC_S[16] - 1, abs=5e-4)


def test_public_throughput_leaves_less_for_a_sequence_the_more_a_step_takes() -> None:
    """300 sequences of 600 tokens in two waves: 1,200 steps and 180,000 sequences in them."""
    setup = build_cell("1.5B+1.5B", "amc", 8).setup
    left = [bound_sequence_s(setup.device, setup.generator, 13.85, s) for s in (0.001, 0.004)]
    assert left[0] - left[1] == pytest.approx(0.003 * 1200 / 180_000)
    assert 0 < left[1] < left[0] < 1 / (13.85 * 600)


# ---------------------------------------------------------------- cells and tables


def test_a_cell_is_the_papers() -> None:
    for pair, (_, share) in PAIRS.items():
        bench = build_cell(pair, "amc", 8)
        weights = bench.setup.generator.weights_bytes + bench.setup.verifier.weights_bytes
        whole = bench.setup.device.memory_bytes * share
        assert bench.setup.kv_bytes == pytest.approx(whole - weights - 2 * 1.2 * 2**30, abs=9)
        assert len(bench.rows) == choose_problem_count(8)
        assert bench.search.n == 8
    assert all(choose_problem_count(a) >= choose_problem_count(b) for a, b in pairwise(WIDTHS))


def test_rungs_are_compared_on_the_same_problem_and_averaged_over_problems() -> None:
    bench = build_cell("7B+1.5B", "amc", 4)
    ladder = RUNGS[:2]
    cells = [climb_ladder(bench, row, ladder) for row in bench.rows[:2]]
    assert all(problem[0]["goodput_gain"] == 1 for problem in cells)
    stock, suffix = average_problems(cells)
    assert stock["latency_cut"] == 0
    both = [problem[1]["goodput_gain"] for problem in cells]
    assert suffix["goodput_gain"] == pytest.approx(sum(both) / 2)
    assert suffix["same_trees"] == 1


def test_a_gain_has_an_interval_over_its_problems_and_a_differing_tree_shows() -> None:
    (row,) = average_problems(
        [{"goodput_gain": gain, "gain_over_suffix": 1.0, "same_trees": gain < 3.0}]
        for gain in (1.0, 2.0, 3.0)
    )
    assert row["same_trees"] == pytest.approx(2 / 3)
    assert row["goodput_gain"] == 2
    assert 1 <= row["goodput_gain_low"] < 2 < row["goodput_gain_high"] <= 3
    assert format_gain(row, "gain_over_suffix") == "1.00 (1.00-1.00)"


def test_the_summary_is_of_all_cells() -> None:
    names = "goodput_gain gain_over_suffix latency_cut same_trees generator_s verifier_s"
    base = dict.fromkeys(names.split(), 1.0)
    cells = {}
    for n, gain, cut in ((8, 2.0, 0.25), (16, 4.0, 0.75)):
        suffix = {**base, "latency_cut": cut, "goodput_gain": gain, "verifier_s": 1 - cut}
        cells["1.5B+7B", "amc", n] = [suffix if r.name == "suffix" else base for r in RUNGS]
    told = grid.summarize(cells)["suffix"]
    assert (told["mean_goodput_gain"], told["mean_gain_over_suffix"]) == (3, 1)
    assert (told["peak_goodput_gain"], told["least_goodput_gain"]) == (4, 2)
    assert told["least_and_most_latency_cut"] == [0.25, 0.75]
    assert (told["verifier_latency_cut"], told["generator_latency_cut"]) == (0.5, 0)


def test_a_table() -> None:
    table = format_table(("a", "b"), [(1, "x")], "c")
    assert table.splitlines() == ["**c**", "", "| a | b |", "|---|---|", "| 1 | x |"]


# ---------------------------------------------------------------- single questions


def test_each_cell_of_the_surface_has_both_gains_with_intervals() -> None:
    asked = sensitivity.parse_flags(["--quick", "--pairs", "1.5B+1.5B"])
    tasks = sensitivity.list_tasks(asked)
    assert len(tasks) == len(set(tasks)) == 2 * 2 * 2
    assert {task[2:4] for task in tasks} == {(1, 0), (1, 240), (9, 0), (9, 240)}
    runs = [sensitivity.run_seed("smooth", 2, task) for task in tasks[:2]]
    (row,) = average_problems(runs)[-1:]
    cells = {tasks[0][:4]: row}
    for name in sensitivity.COLUMNS:
        table = sensitivity.build_table(cells, name)
        assert f"| 1.5B+1.5B | 8 | 1 | {format_gain(row, name)} |" in table
    assert row["goodput_gain"] > row["gain_over_suffix"]
    assert row["same_trees"] == 1


def test_a_duplicate_keeps_a_share_of_its_siblings_draft_and_one_token_is_its_own() -> None:
    sizes = [paper_rules.truncate_draft(100, 0.85, seed) for seed in range(500)]
    assert sum(sizes) / 500 == pytest.approx(84.7, abs=1.5)
    assert max(sizes) == 99
    assert min(sizes) > 40
    assert paper_rules.truncate_draft(1, 1.0, 7) == 0


def run_arms(study: str, *arms: str, n: int, gb: float | None = None) -> list[dict[str, Any]]:
    cell = paper_figures.Cell(study=study, n=n, gb=gb, problems=1)
    return [paper_figures.run_case(cell, arm, cell.list_rows()[0]) for arm in arms]


def test_more_problems_begin_with_the_same_ones() -> None:
    """Else the runs of the fewer ones would be lost."""
    few, more = (
        paper_figures.Cell(study="speculation", n=n, problems=problems).list_rows()
        for n, problems in ((16, 3), (64, 25))
    )
    assert few == more
    assert len(set(more)) == len(more)


def test_the_papers_slots_change_no_tree_and_its_truncation_does() -> None:
    none, ours, slots, truncated = run_arms(
        "speculation", "none", "ours", "slots", "slots, R = 0.85", n=16
    )
    assert none["tree"] == ours["tree"] == slots["tree"] != truncated["tree"]
    assert none["drawn_tokens"] == 0
    assert truncated["kept_steps"] > slots["kept_steps"] > 0
    for part in ("first half", "second half", "verifier"):
        assert 0 < slots[part]["utilization"] <= 1
    assert slots["second half"]["sequences"] > none["second half"]["sequences"]


def test_the_papers_slots_keep_the_batch_at_most_as_large_as_the_level_was() -> None:
    """Ours draft beyond that where a step is short of sequences."""
    ours, slots = run_arms("speculation", "ours", "slots", n=8)
    for part in ("first half", "second half"):
        assert slots[part]["most_sequences"] == 8 < ours[part]["most_sequences"]
    assert slots["second half"]["sequences"] > 4


def test_tokens_that_r_copies_are_not_new() -> None:
    exact = {"tokens": 100, "kept_tokens": 30, "seconds": 2.0, "tokens_per_s": 50.0}
    truncated = {"tokens": 110, "kept_tokens": 50, "seconds": 2.0, "tokens_per_s": 55.0}
    arms = {"slots": {3: exact, 4: exact}, "slots, R = 0.85": {4: truncated}}
    told = paper_figures.compare_with_exact("slots, R = 0.85", arms)
    assert told == ("1.10 (1.10–1.10)", "0.90 (0.90–0.90)")
    assert paper_figures.compare_with_exact("slots", arms) == ("–", "–")


def test_batch_limits_change_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    choose = paper_rules.LimitingManager.choose_split

    def watch(manager: paper_rules.LimitingManager, load: Any) -> Any:
        split = choose(manager, load)
        limits.append((load.paths, split.decode_batch, split.prefill_batch))
        return split

    monkeypatch.setattr(paper_rules.LimitingManager, "choose_split", watch)
    unlimited, limited = run_arms("memory", "order+split", "order+split+limits", n=24, gb=0.15)
    assert any(min(decode, prefill) < paths for paths, decode, prefill in limits)
    assert unlimited["tree"] == limited["tree"]
    assert unlimited["seconds"] != limited["seconds"]


def test_kv_of_the_first_paths_counts_shared_segments_once() -> None:
    bench = build_cell("1.5B+1.5B", "amc", 16)
    row = bench.rows[0]
    tree = bench.run(RUNGS[1], row).tree
    found = paper_figures.measure_orders(tree, bench, row)
    assert all(mb == sorted(mb) for mb in found.values())
    assert found["prefix"][0] < found["scattered"][0]
    levels: dict[int, list[Any]] = {}
    for node in tree.nodes.values():
        if node.segment is not None:
            levels.setdefault(node.depth, []).append(node)
    widest = max(levels.values(), key=lambda nodes: sum(node.path_tokens for node in nodes))
    segments = {at.id: at.num_tokens for node in widest for at in tree.path(node.id)}
    tokens = bench.trace.rows[row].prompt_tokens + sum(segments.values())
    whole = tokens * bench.setup.generator.kv_bytes_per_token / 1e6
    assert [mb[-1] for mb in found.values()] == pytest.approx([whole] * 4)
    assert tokens < sum(node.path_tokens for node in widest)  # segments are shared
