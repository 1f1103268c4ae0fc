"""`bench flashtts`: what each optimization brings, on this machine's engines or on a card."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.models.evaluate import sizes_of
from flashedge.cli.progress import bar
from flashedge.config import Config, load_config
from flashedge.errors import DaemonError, RequestError

if TYPE_CHECKING:
    from flashedge.benchmark.live import Course
    from flashedge.benchmark.live_run import LiveRun, Which
    from flashedge.files.journal import RecordFile
    from flashedge.models.specs import Pair

app = typer.Typer(help="What optimizations bring.", no_args_is_help=True)
RUNS, REPORT = "runs.jsonl", "report.json"
PAPERS_PAIRS = ("math-1.5b+skywork-1.5b", "math-1.5b+shepherd-7b", "math-7b+skywork-1.5b")
WORKLOADS = ("aime", "amc")
SHARES = {"math-1.5b+skywork-1.5b": 0.4}  # arXiv 2509.00195 §6.1; the others 0.9


@app.callback()
def _root() -> None:
    pass


@app.command(name="flashtts")
def flashtts(
    problems: Annotated[
        Path | None, typer.Option(help="JSON lines of problem (and answer): what real engines run.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="Pair to measure.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Problems (simulated: a cell).")] = 4,
    n: Annotated[str, typer.Option("--n", "-n", help="Paths, with commas.")] = "4,16",
    rungs: Annotated[
        str | None, typer.Option(help="Rungs to run beside the stock loop, with commas.")
    ] = None,
    kv: Annotated[
        str, typer.Option(help="KV of both engines, with commas: plan, 64MiB, ...")
    ] = "plan",
    rounds: Annotated[int, typer.Option(min=1, help="How often all is run: A B A B is 2.")] = 1,
    strategy: Annotated[str, typer.Option(help="Search strategy.")] = "beam",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="No engines: a simulated card.")
    ] = False,
    gpu: Annotated[str | None, typer.Option(help="With --simulated: which card.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--output", help="Folder of what is done and of the report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The stock loop and every optimization: latency, goodput, equal trees."""
    from flashedge.benchmark import ladder

    config = load_config({"pair": pair})
    chosen = ladder.find_rungs(None if rungs is None else [r.strip() for r in rungs.split(",")])
    widths = sizes_of(n)
    if simulated:
        pairs = PAPERS_PAIRS if pair is None else (pair,)
        rows = _simulate(gpu or "rtx4090", pairs, chosen, widths, limit, strategy, config)
        _tell(rows, as_json, {"simulated": True})
        return
    if gpu is not None:
        raise RequestError("--gpu names a simulated card", hint="add --simulated", param="gpu")
    if problems is None:
        raise RequestError(
            "real engines need problems to solve",
            hint="--problems FILE, or --simulated",
            param="problems",
        )
    _measure(problems, chosen, widths, kv, limit, rounds, strategy, seed, folder, as_json, config)


# ---------------------------------------------------------------- a simulated card


def _simulate(
    gpu: str,
    pairs: Sequence[str],
    chosen: Sequence[Any],
    widths: Sequence[int],
    problems: int,
    strategy: str,
    config: Config,
) -> list[dict[str, Any]]:
    from flashedge.benchmark.simulate import SHARE, Question, answered, understood

    cells = [
        Question(
            gpu=gpu,
            pair=pair,
            strategy=strategy,
            n=n,
            workload=workload,
            problems=problems,
            share=SHARES.get(pair, SHARE),
        )
        for pair in pairs
        for workload in WORKLOADS
        for n in widths
    ]
    benches = [(cell, understood(cell, config)) for cell in cells]
    total = sum(len(bench.rows) for _, bench in benches) * len(chosen)
    rows: list[dict[str, Any]] = []
    with bar("simulating", total, unit="runs") as advance:
        for cell, bench in benches:
            where = {"case": f"{cell.pair}, {cell.workload}", "n": bench.search.n}
            rows += [{**where, **row} for row in answered(bench, chosen, advance)]
    return rows


# ---------------------------------------------------------------- real engines


def _measure(
    file: Path,
    chosen: Sequence[Any],
    widths: tuple[int, ...],
    kv: str,
    limit: int,
    rounds: int,
    strategy: str,
    seed: int,
    folder: Path | None,
    as_json: bool,
    config: Config,
) -> None:
    from flashedge.benchmark.grades import graded
    from flashedge.benchmark.live import Course, carried_out, parse_budget
    from flashedge.benchmark.live_run import compared
    from flashedge.files.problems import read_problems
    from flashedge.models.registry import find_pair

    pair = find_pair(config.pair, config)
    course = Course(
        rungs=tuple(chosen),
        problems=read_problems(file, limit),
        widths=widths,
        kv=dict(parse_budget(part.strip()) for part in kv.split(",")),
        rounds=rounds,
        strategy=strategy,
        seed=seed,
    )
    _refuse_company(config)
    folder = folder or config.state_dir / "benches" / f"flashtts-{config.pair}"
    with _kept(folder, pair, file, course, config) as kept:
        asked = [which for which in course.whiches if which in kept.records]
        with bar("measuring", course.runs, done=len(asked), unit="runs") as advance:

            def done(run: LiveRun) -> None:
                kept.append(run)
                advance(1)

            try:
                carried_out(course, config, output.note, done, kept=kept.records)
                cut = False
            except KeyboardInterrupt:
                cut = True
        runs = [kept.records[which] for which in course.whiches if which in kept.records]
    if cut:
        output.note(
            f"cut off after {len(runs)} of {course.runs} runs, kept: the same command goes on"
        )
    rows = compared(runs, asyncio.run(graded(runs, course.problems)))
    told = {"simulated": False, "pair": config.pair, "file": str(file), "rounds": rounds}
    output.write_json(folder / REPORT, {**told, "rungs": rows})
    _tell([{**row, "case": f"KV {row['kv']}"} for row in rows], as_json, told)
    output.note(f"in {folder}: {RUNS}, {REPORT}")
    if cut:
        raise typer.Exit(exit_codes.INTERRUPTED)


def _refuse_company(config: Config) -> None:
    from flashedge.daemon.files import find_holder

    if (pid := find_holder(config)) is not None:
        raise DaemonError(
            f"a daemon runs (process {pid}); its work would spoil the measurement",
            hint="flashedge down, then flashedge bench flashtts",
        )


def _kept(
    folder: Path, pair: Pair, file: Path, course: Course, config: Config
) -> RecordFile[Which, LiveRun]:
    """What was measured of the same models, problems and search before. Raises Conflict,
    StoreError."""
    from flashedge.benchmark.live_run import LiveRun
    from flashedge.files.journal import RecordFile
    from flashedge.files.problems import file_digest
    from flashedge.models.fingerprint import pair_fingerprint

    settings = {
        "pair": pair.name,
        "models": pair_fingerprint(pair, config),
        "problems": file_digest(file),
        "strategy": course.strategy,
        "seed": course.seed,
    }
    return RecordFile(folder / RUNS, settings, LiveRun.from_json, key=lambda run: run.which)


# ---------------------------------------------------------------- telling


def _tell(rows: Sequence[Mapping[str, Any]], as_json: bool, told: Mapping[str, Any]) -> None:
    if as_json:
        output.print_json({**told, "rungs": rows})
        return
    if told["simulated"]:
        print("SIMULATED: a roofline of the card in virtual time, no measurement")
    columns = ("n", "rung", "latency", "generator", "verifier", "goodput", "gain", "trees")
    for case, group in groupby(rows, key=lambda row: row["case"]):
        print(f"\n{case}")
        output.print_table(columns, map(_row, group), "nothing was run")
    if not rows:
        output.note("nothing was run")


def _row(row: Mapping[str, Any]) -> tuple[object, ...]:
    gain, same = row["goodput_gain"], row["same_trees"]
    if isinstance(gain, Mapping):
        gain = f"{gain['value']:.2f}x ({gain['low']:.2f}-{gain['high']:.2f})"
    elif gain is not None:
        gain = f"{gain:.2f}x"
    return (
        row["n"],
        row["rung"],
        f"{row['latency_s']:.2f} s",
        f"{row['generator_s']:.2f} s",
        f"{row['verifier_s']:.2f} s",
        f"{row['goodput']:.1f}",
        gain,
        None if same is None else "equal" if same == 1 else f"{same:.0%} equal",
    )
