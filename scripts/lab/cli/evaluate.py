"""`models eval`: measure a pair on problems with known answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.progress import show_bar
from flashedge.config import Config, load_config
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.files.journal import Journal
from flashedge.files.problems import LabelledProblem, read_labelled
from flashedge.models.folders import fingerprint_pair, resolve_model
from flashedge.models.registry import find_pair
from scripts.lab.cli import file_digest, option, output_option, write_report

if TYPE_CHECKING:
    from scripts.lab.evaluation.measure import ProblemRecord, Settings

MAX_N = 1024
RECORDS, REPORT, PLOT = "problems.jsonl", "report.json", "reliability.svg"
app = typer.Typer(add_completion=False)


@app.command()
def evaluate(
    problems: Annotated[Path, option("FILE", "JSON lines of problem and answer.")],
    pair: Annotated[
        str | None,
        typer.Argument(metavar="PAIR", help="Pair to measure.", show_default="the setting `pair`"),
    ] = None,
    limit: Annotated[int | None, option("N", "Use only the first N problems.", min=1)] = None,
    n: Annotated[str, option("N,N", "Chains and paths, with commas.", "--n", "-n")] = "4,16",
    temperature: Annotated[float, option("X", "Sampling temperature.", min=0.0, max=2.0)] = 0.8,
    seed: Annotated[int, option("N", "The same seed gives the same chains.", min=0)] = 0,
    folder: Annotated[Path | None, output_option("records")] = None,
    as_json: Annotated[bool, option(None, "Print the report as JSON.", "--json")] = False,
) -> None:
    """Measure a pair on problems with known answers: sampling, votes, search, verifier.

    Every figure comes with a 95 % interval.
    """
    from flashedge.plots import draw_plot
    from scripts.lab.evaluation.figures import build_report
    from scripts.lab.evaluation.measure import Settings, open_records, step_counter

    sizes = parse_widths(n)
    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    if not chosen.has_verifier:
        told = f"{chosen.name} has no verifier, whose choices this command compares"
        raise RequestError(told, hint="votes alone: python -m scripts.bench.real", param="pair")
    selected = read_labelled(problems, limit)
    generator, _ = (resolve_model(spec, config) for spec in (chosen.generator, chosen.verifier))
    settings = Settings(
        pair=chosen.name,
        models=fingerprint_pair(chosen, config),
        problems=file_digest(problems),
        n=sizes,
        temperature=temperature,
        seed=seed,
    )
    folder = folder or config.state_dir / "evaluations" / f"{chosen.name}-{problems.stem}"
    searches = chosen.verifier.judges == "steps"
    failed: dict[str, str] = {}
    with open_records(folder / RECORDS, settings) as kept:
        left = [problem for problem in selected if problem.index not in kept.records]
        if left:
            failed = _measure(config, settings, left, kept, step_counter(generator), searches)
        records = [kept.records[p.index] for p in selected if p.index in kept.records]
    report = {
        "settings": {**asdict(settings), "file": str(problems)},
        **build_report(records, sizes),
        "failed": failed,
    }
    write_report(folder / REPORT, report)
    draw_plot(
        folder / PLOT,
        {chosen.name: [(row["said"], row["true"]) for row in report["reliability"]]},
        title="Reliability of the verifier",
        x="score of a step",
        y="share of its chains that are right",
        diagonal=True,
        points=True,
    )
    if as_json:
        output.print_json(report)
    else:
        _print(report)
    for name, why in failed.items():
        output.note(f"left out: problem {name}: {why}")
    output.note(f"{len(records)} problems; wrote {RECORDS}, {REPORT} and {PLOT} in {folder}")


def parse_widths(text: str) -> tuple[int, ...]:
    """(4, 16) of "16,4". Raises RequestError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdigit() and 1 <= int(p[:9]) <= MAX_N for p in parts):
        raise RequestError(
            f"--n is {text!r}; it must be integers in [1, {MAX_N}]",
            hint="for example --n 4,16",
            param="n",
        )
    return tuple(sorted({int(part) for part in parts}))


def _measure(
    config: Config,
    settings: Settings,
    problems: Sequence[LabelledProblem],
    kept: Journal[int, ProblemRecord],
    count_steps: Any,
    searches: bool,
) -> dict[str, str]:
    """Measure `problems` with a bar on stderr. Returns why some failed, by their ids."""
    import asyncio

    from flashedge.cli.connection import connect_ready
    from flashedge.daemon import control as daemon_control
    from scripts.lab.evaluation.measure import Measurer

    connect_ready(config).close()
    runs = 2 + len(settings.n) * searches  # greedy, the samples, and a beam for each n
    total, done = (len(problems) + len(kept.records)) * runs, len(kept.records) * runs
    failed: dict[str, str] = {}

    def note_failure(problem: LabelledProblem, error: FlashEdgeError) -> None:
        failed[str(problem.id)] = error.line

    async def work() -> None:
        async with daemon_control.connect_async(config, name="models-eval") as client:
            with show_bar("measuring", total, done=done, unit="runs") as advance:
                await Measurer(
                    client=client,
                    settings=settings,
                    count_steps=count_steps,
                    run_done=lambda: advance(1),
                    problem_done=kept.append,
                    problem_failed=note_failure,
                    in_flight=config.max_running + 1,  # one waits, so that none idles
                    searches=searches,
                ).measure(problems)

    try:
        asyncio.run(work())
    except (KeyboardInterrupt, FlashEdgeError):
        output.note(
            f"{len(kept.records)} problems are stored in {kept.path}; the same command resumes"
        )
        raise
    return failed


def _print(report: Mapping[str, Any]) -> None:
    columns = ("", "value", "95 % interval", "problems")
    rows: list[tuple[object, ...]] = []
    for section in ("accuracy", "paired", "verifier", "step_tokens"):
        word = "step tokens: " if section == "step_tokens" else ""
        rows += [_format_row(word + name, figure) for name, figure in report[section].items()]
        rows.append(("", "", "", ""))
    for section, word in (("by_family", "family"), ("by_steps", "steps")):
        for group, figures in report[section].items():
            rows += [_format_row(f"{word} {group}: {name}", f) for name, f in figures.items()]
    output.print_table(columns, rows, "nothing was measured")
    table = [(r["said"], r["true"], r["count"]) for r in report["reliability"]]
    output.print_table(("score", "share that is right", "steps"), table, "no steps were scored")


def _format_row(name: str, figure: Mapping[str, Any]) -> tuple[object, ...]:
    low, high = figure["low"], figure["high"]
    return (
        name,
        _format(figure["value"]),
        None if low is None else f"{_format(low)} … {_format(high)}",
        figure["count"],
    )


def _format(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
