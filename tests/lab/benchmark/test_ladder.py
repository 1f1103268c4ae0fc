"""The table of switches, and what each rung of it is on the simulated pair."""

import dataclasses
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from flashedge.config import Config, load_config
from flashedge.errors import NotFound
from flashedge.optimizations import SWITCHES
from scripts.bench.flashtts.step_lengths import measure_longest
from scripts.lab.benchmark.devices import OVERHEADS
from scripts.lab.benchmark.ladder import ALL, BEST, ONCE, RUNGS, find_rungs
from scripts.lab.benchmark.lengths import WORKLOADS, group_lengths, load_trace, pick_rows, smooth
from scripts.lab.benchmark.simulate import Bench, Question, build_bench, run_ladder, summarize_runs
from scripts.lab.benchmark.virtual_run import VirtualRun

NAMED = {rung.name: rung for rung in RUNGS}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load_config({}, {"FLASHEDGE_HOME": str(tmp_path_factory.mktemp("home"))})


def bench_of(config: Config, **fields: object) -> Bench:
    """A 4090 with 1.5B + 7B, whose verifier is what memory is short for. Lengths are observed and
    overheads high, where speculation does not pay for wide searches."""
    setup = {"gpu": "rtx4090", "pair": "math-1.5b+shepherd-7b", "overheads": OVERHEADS["high"]}
    asked = {"strategy": "beam", "n": 16, "lengths": "observed", "problems": 1}
    return build_bench(Question(**{**setup, **asked, **fields}), config)  # type: ignore[arg-type]


def rebuild(bench: Bench, **setup: Any) -> Bench:
    return dataclasses.replace(bench, setup=dataclasses.replace(bench.setup, **setup))


@pytest.fixture(scope="module")
def ladder(config: Config) -> dict[str, VirtualRun]:
    bench = bench_of(config, n=32, workload="aime")
    bench = rebuild(bench, kv_bytes=400 << 20, limits=(1024, 1024), link=None)
    search = dataclasses.replace(bench.search, max_path_tokens=700)
    bench = dataclasses.replace(bench, search=search)
    return {rung.name: bench.run(rung, bench.rows[0]) for rung in RUNGS}


# ---------------------------------------------------------------- the table


def test_each_rung_adds_to_the_one_before() -> None:
    on = [{switch for switch in SWITCHES if getattr(rung.optimizations, switch)} for rung in RUNGS]
    assert all(before < after for before, after in pairwise(on))
    assert [after - before for before, after in pairwise(on)] == [
        {"suffix_scoring"},
        {"prefix_order"},
        {"kv_split", "offload"},
        {"speculation"},
        {"lookahead"},
    ]
    assert [rung.is_stock for rung in ALL] == [True, *[False] * (len(ALL) - 1)]
    assert ONCE.optimizations == dataclasses.replace(BEST.optimizations, score_once=True)


def test_rungs_are_found_by_name_and_the_stock_loop_is_always_there() -> None:
    assert [r.name for r in find_rungs(["+P+M", "suffix"])] == ["stock", "suffix", "+P+M"]
    assert find_rungs() == ALL
    with pytest.raises(NotFound) as e:
        find_rungs(["+Q"])
    assert str(e.value.hint).startswith("known: stock, suffix, +P, ")


# ---------------------------------------------------------------- the workload


def test_a_workload_has_the_lengths_that_it_names() -> None:
    counts = {name: len(load_trace(name).rows) for name in WORKLOADS}
    assert counts == {"math": 100, "aime": 25, "amc": 48, "gsm8k": 40}
    for name, workload in WORKLOADS.items():
        paths = [sum(s) for row in load_trace(name).rows for s in row.step_tokens]
        assert f"{sum(paths) / len(paths):.0f} tokens a path" in workload.about


def test_smooth_lengths_keep_the_observed_means_and_the_chance_to_conclude() -> None:
    observed, smoothed = load_trace("math"), load_trace("math", "smooth")
    for before, after in zip(observed.rows, smoothed.rows, strict=True):
        groups, smooth_groups = group_lengths(before), group_lengths(after)
        assert list(groups) == list(smooth_groups)
        sizes = {len(smooth_groups[key]) / len(group) for key, group in groups.items()}
        assert len(sizes) == 1
        for key, group in groups.items():
            mean = fmean(group)
            assert abs(fmean(smooth_groups[key]) - mean) < max(0.5, 0.01 * mean)
    # the tail that eight samples cannot show
    assert measure_longest(smoothed, 8) == pytest.approx(measure_longest(observed, 8), rel=0.2)
    assert measure_longest(observed, 512) < 1.5
    assert 2.0 < measure_longest(smoothed, 64) < 2.7
    assert 2.8 < measure_longest(smoothed, 512) < 3.7


def test_smooth_lengths_are_the_same_every_time_and_depend_on_the_seed(config: Config) -> None:
    observed = load_trace("amc")
    assert smooth(observed, 4) == smooth(observed, 4)
    bench = bench_of(config, n=4, lengths="smooth")
    row = bench.rows[0]
    one, again, other = (bench.run(RUNGS[0], row, seed).tree for seed in (1, 1, 2))
    assert one == again != other


def test_few_problems_are_spread_over_all_lengths() -> None:
    trace = load_trace("math")
    rows = pick_rows(trace, 4)
    sizes = [sum(map(sum, trace.rows[i].step_tokens)) for i in rows]
    everything = sorted(sum(map(sum, row.step_tokens)) for row in trace.rows)
    quarters = [everything[i * 25 : (i + 1) * 25] for i in range(4)]
    assert all(q[0] <= size <= q[-1] for q, size in zip(quarters, sizes, strict=True))
    assert len(set(pick_rows(trace, 1000))) == 100


# ---------------------------------------------------------------- what a rung is


def test_every_rung_builds_the_same_tree_and_saves_what_its_name_says(
    ladder: dict[str, VirtualRun],
) -> None:
    """The artifact overshoots n, its prefix-aware order is commented out, its split is fixed. The
    7B verifier gets what the generator can spare."""
    stock, suffix, order, split = (ladder[name] for name in ("stock", "suffix", "+P", "+P+M"))
    assert all(run.tree == stock.tree for run in ladder.values())
    assert {run.paths for run in ladder.values()} == {32}
    assert stock.verifier_cached_tokens == 0 < suffix.verifier_cached_tokens
    assert suffix.verify_s < stock.verify_s
    assert order.verifier_cached_tokens > suffix.verifier_cached_tokens
    assert order.split_moves == 0 < split.split_moves
    assert split.verifier_cached_tokens > order.verifier_cached_tokens
    assert split.verify_s < order.verify_s


def test_speculation_and_lookahead_do_what_their_names_say(
    config: Config, ladder: dict[str, VirtualRun]
) -> None:
    few = bench_of(config, n=8, workload="aime")
    none, ahead, scored = (few.run(rung, few.rows[0]).speculation for rung in RUNGS[-3:])
    assert (none.kept_steps, ahead.scored_steps) == (0, 0)
    assert ahead.kept_steps > 0
    assert scored.scored_steps > 0
    off, on = ladder["+P+M"], ladder["+P+M+S"]
    assert on.speculation.drawn_tokens < 0.1 * off.tree.committed_tokens, "32: it hardly pays"
    assert on.seconds < 1.01 * off.seconds


def test_the_offload_is_chosen_where_memory_is_short_and_takes_time(config: Config) -> None:
    bench = bench_of(config, pair="math-1.5b+skywork-1.5b", n=64, kv_bytes=260 << 20)
    run = bench.run(NAMED["+P+M"], bench.rows[0])
    assert run.offloads > 0
    assert run.offload_s > 0
    plain = rebuild(bench, link=None).run(NAMED["+P+M"], bench.rows[0])
    assert (plain.offloads, plain.tree) == (0, run.tree)


def test_a_verifier_with_a_device_of_its_own_takes_that_ones_time(config: Config) -> None:
    bench = bench_of(config, n=4)
    slow = dataclasses.replace(bench.setup.device, overhead_s=1.0)
    benches = [rebuild(bench, verifier_device=device) for device in (None, slow)]
    shared, own = (one.run(NAMED["suffix"], one.rows[0]) for one in benches)
    assert own.tree == shared.tree
    assert own.generate_s == pytest.approx(shared.generate_s)
    assert own.verify_s > shared.verify_s + 1.0


def test_figures_compare_problem_by_problem(config: Config) -> None:
    bench = bench_of(config, n=4, problems=2)
    ticks: list[int] = []
    rows = run_ladder(bench, find_rungs(["suffix"]), ticks.append)
    assert ticks == [1] * 4
    assert [row["rung"] for row in rows] == ["stock", "suffix"]
    assert rows[0]["goodput_gain"] == 1 < rows[1]["goodput_gain"]
    assert rows[0]["latency_cut"] == 0
    assert all(row["same_trees"] for row in rows)
    first = [bench.run(RUNGS[0], row) for row in bench.rows]
    told = summarize_runs(first, first)
    assert told["latency_s"] == pytest.approx(sum(r.seconds for r in first) / 2)
    apart = ("rung", "about", "gain_over_suffix")
    assert told == {k: v for k, v in rows[0].items() if k not in apart}
    assert rows[0]["gain_over_suffix"] < 1 == rows[1]["gain_over_suffix"]
    (alone,) = run_ladder(bench, RUNGS[:1])
    assert alone["gain_over_suffix"] is None
    assert not summarize_runs(first[:1], first[1:])["same_trees"]
