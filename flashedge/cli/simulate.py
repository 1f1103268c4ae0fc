"""`simulate`: what a pair would do on a card, in virtual time: no engine, no download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.progress import bar
from flashedge.config import load_config
from flashedge.sizes import format_size

COLUMNS = ("", "latency", "generator", "verifier", "goodput", "gain", "KV held, GiB")


def simulate(
    gpu: Annotated[str, typer.Option(help="Card to simulate.")] = "rtx4090",
    pair: Annotated[
        str, typer.Option(help="Pair, as `models ls` names it.")
    ] = "math-1.5b+skywork-1.5b",
    strategy: Annotated[str, typer.Option(help="Search strategy; beam-64 sets n too.")] = "beam",
    n: Annotated[int, typer.Option("--n", "-n", help="Paths to complete.")] = 16,
    workload: Annotated[str, typer.Option(help="Whose step lengths: aime, amc or math.")] = "math",
    problems: Annotated[int, typer.Option(min=1, max=100, help="Problems to run.")] = 4,
    memory: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Share of the card's memory to use.")
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What would I get? The stock loop and each optimization, on a simulated card."""
    from flashedge.benchmark.ladder import RUNGS
    from flashedge.benchmark.simulate import Question, answered, assumptions, understood

    question = Question(
        gpu=gpu,
        pair=pair,
        strategy=strategy,
        n=n,
        workload=workload,
        problems=problems,
        share=memory,
    )
    bench = understood(question, load_config())
    with bar("simulating", len(RUNGS) * len(bench.rows), unit="runs") as advance:
        rows = answered(bench, RUNGS, advance)
    told = assumptions(bench, question)
    if as_json:
        output.print_json({**told, "rungs": rows})
    else:
        _print(told, rows)


def _print(told: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    device = told["device"]
    print(
        f"SIMULATED: {told['pair']}, {told['strategy']} n={told['n']} on {device['name']},"
        f" {format_size(told['kv_bytes'])} for KV"
    )
    print(f"{told['about']}; means of {told['problems']} problems, in virtual time")
    print()
    output.print_table(COLUMNS, map(_row, rows), "nothing")
    print("goodput: tokens/s of a completed path; KV: most that requests of each engine held")
    if not all(row["same_trees"] for row in rows):
        print("! not every rung built the stock loop's trees")
    basis = (
        "calibrated on public points of this card"
        if device["calibrated"]
        else "by its data sheet; overheads are a 4090's"
    )
    print(f"A roofline of the card, {basis}: no measurement. Gains: docs/flashtts/README.md")


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    held = (row["generator_peak_bytes"] / 2**30, row["verifier_peak_bytes"] / 2**30)
    return (
        row["about"],
        f"{row['latency_s']:.2f} s",
        f"{row['generator_s']:.2f} s",
        f"{row['verifier_s']:.2f} s",
        f"{row['goodput']:.1f}",
        f"{row['goodput_gain']:.2f}x",
        f"{held[0]:.2f} + {held[1]:.2f}",
    )
