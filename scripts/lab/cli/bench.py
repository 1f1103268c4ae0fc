"""`bench` and `bench flashtts`: the gain of each optimization on real engines."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.errors import DaemonError
from scripts.lab.cli import file_digest, load, option, output_option, strategy_option, write_report
from scripts.lab.cli.evaluate import parse_widths

RUNS, REPORT = "runs.jsonl", "report.json"
COLUMNS = (
    *("n", "rung", "latency", "generator", "verifier", "goodput"),
    *("gain", "over suffix", "trees"),
)
app = typer.Typer(
    help="Measure what optimizations gain, and how a load of many programs fares.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def flashtts(
    problems: Annotated[Path, option("FILE", "JSON lines of problem (and answer).")],
    pair: Annotated[
        str | None, option("PAIR", "Pair to measure.", show_default="the setting `pair`")
    ] = None,
    limit: Annotated[int, option("N", "Use the first N problems.", min=1)] = 4,
    n: Annotated[str, option("N,N", "Paths to complete, with commas.", "--n", "-n")] = "4,16",
    rungs: Annotated[
        str | None,
        option(
            "NAME,NAME",
            "Rungs to run besides the stock loop: suffix, +P, +P+M, +P+M+S, +lookahead, …",
        ),
    ] = None,
    kv: Annotated[
        str, option("SIZE,SIZE", "KV memory of both engines together: plan (the pair's), 64MiB, …")
    ] = "plan",
    rounds: Annotated[int, option("N", "Repeat everything N times, in turn.", min=1)] = 1,
    strategy: Annotated[str, strategy_option("NAME", "Search strategy.")] = "beam",
    seed: Annotated[int, option("N", "Seed of the searches.", min=0)] = 0,
    folder: Annotated[Path | None, output_option("runs")] = None,
    as_json: output.Json = False,
) -> None:
    """Compare the stock loop with each optimization: latency, goodput, equal trees."""
    from flashedge.daemon.files import find_holder
    from flashedge.files.journal import Journal
    from flashedge.files.problems import read_problems
    from flashedge.models.folders import fingerprint_pair
    from flashedge.models.registry import find_pair
    from scripts.lab.benchmark import ladder, live

    config = load_config({"pair": pair})
    chosen = ladder.find_rungs(None if rungs is None else [r.strip() for r in rungs.split(",")])
    widths = parse_widths(n)
    measured = find_pair(config.pair, config)
    plan = live.BenchPlan(
        rungs=chosen,
        problems=read_problems(problems, limit),
        widths=widths,
        kv=dict(live.parse_budget(part.strip()) for part in kv.split(",")),
        rounds=rounds,
        strategy=strategy,
        seed=seed,
    )
    if (pid := find_holder(config)) is not None:
        raise DaemonError(
            f"a daemon runs (process {pid}); its work would spoil the measurement",
            hint="stop it, then measure: flashedge down && flashedge bench flashtts …",
        )
    folder = folder or config.state_dir / "benches" / f"flashtts-{config.pair}"
    settings = {
        "pair": measured.name,
        "models": fingerprint_pair(measured, config),
        "problems": file_digest(problems),
        "strategy": strategy,
        "seed": seed,
    }
    with Journal(folder / RUNS, settings, live.LiveRun.from_json, key=lambda run: run.key) as kept:
        known = [key for key in plan.keys if key in kept.records]
        with show_bar("measuring", len(plan.keys), done=len(known), unit="runs") as advance:

            def record(run: live.LiveRun) -> None:
                kept.append(run)
                advance(1)

            with suppress(KeyboardInterrupt):
                live.run_plan(plan, config, output.note, record, kept=kept.records)
        runs = [kept.records[key] for key in plan.keys if key in kept.records]
    if interrupted := len(runs) < len(plan.keys):
        output.note(
            f"interrupted after {len(runs)} of {len(plan.keys)} runs; they are stored, and the same"
            " command resumes"
        )
    rows = live.compare_runs(runs, asyncio.run(live.grade_answers(runs, plan.problems)))
    about = {
        "simulated": False,
        "pair": config.pair,
        "file": str(problems),
        "rounds": rounds,
        "stock_engine": ladder.STOCK_ENGINE,
    }
    write_report(folder / REPORT, {**about, "rungs": rows})
    if as_json:
        cases = [{**row, "case": f"KV {row['kv']}"} for row in rows]
        output.print_json({**about, "rungs": cases})
    else:
        for kv_name, group in groupby(rows, key=lambda row: row["kv"]):
            output.say(f"\nKV {kv_name}")
            output.print_table(COLUMNS, map(_format_rung, group), "nothing was run")
        if not rows:
            output.note("nothing was run")
    output.note(ladder.STOCK_ENGINE)
    warn_unpaired(rows)
    output.note(f"wrote {RUNS} and {REPORT} in {folder}")
    if interrupted:
        raise typer.Exit(output.INTERRUPTED)


def warn_unpaired(rows: Sequence[Mapping[str, Any]]) -> None:
    """Warn if a rung built other trees than the stock loop: then it did other work."""
    shares = [row["same_trees"] for row in rows if row["same_trees"] is not None]
    if shares and min(shares) < 1:
        output.warn(
            f"Only {min(shares):.0%} of a rung's trees equal the stock loop's, so its gain compares"
            " different work. The kernels of this device are not batch-invariant (flashedge ps);"
            " on a card, set batch_invariant and measure again."
        )


def _format_rung(row: Mapping[str, Any]) -> tuple[object, ...]:
    same = row["same_trees"]
    return (
        row["n"],
        row["rung"],
        *(f"{row[name]:.2f} s" for name in ("latency_s", "generator_s", "verifier_s")),
        f"{row['goodput']:.1f}",
        _format_gain(row["goodput_gain"]),
        _format_gain(row["gain_over_suffix"]),
        None if same is None else "equal" if same == 1 else f"{same:.0%} equal",
    )


def _format_gain(gain: Mapping[str, float] | None) -> str | None:
    return None if gain is None else f"{gain['value']:.2f}x ({gain['low']:.2f}-{gain['high']:.2f})"


app.command(epilog=load.EPILOG)(load.load)
