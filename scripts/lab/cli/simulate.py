"""`simulate`: what a pair would do on a card, in virtual time, without engine or download."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.sizes import format_size
from scripts.lab.cli import option, strategy_option

GPU, PAIR = "rtx4090", "math-1.5b+skywork-1.5b"
COLUMNS = (
    "",
    "latency",
    "generator",
    "verifier",
    "goodput",
    "gain",
    "over prefix cache",
    "KV peak, GiB",
)
EPILOG = """\
[bold]Example[/]
  flashedge simulate --pair math-7b+skywork-1.5b --strategy beam-64
"""
app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def simulate(
    gpu: Annotated[
        str, option("CARD", "Card to simulate: rtx3090, rtx4080, rtx4090, rtx5090.")
    ] = GPU,
    pair: Annotated[str, option("PAIR", "Pair, as `models ls` names it.")] = PAIR,
    strategy: Annotated[
        str, strategy_option("NAME[-N]", "Search strategy; beam-64 also sets --n.")
    ] = "beam",
    n: Annotated[int, option("N", "Paths to complete.", "--n", "-n")] = 16,
    workload: Annotated[
        str, option("NAME", "Problems whose step lengths are used: aime, amc, math, gsm8k.")
    ] = "math",
    problems: Annotated[int, option("N", "Problems to run.", min=1, max=100)] = 4,
    memory: Annotated[
        float | None,
        option(
            "SHARE",
            "Share of the card's memory to use.",
            min=0.05,
            max=1.0,
            show_default="planned as the engines plan it",
        ),
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Estimate a pair's speed on a card: the stock loop, then each optimization."""
    from scripts.lab.benchmark.devices import OVERHEADS
    from scripts.lab.benchmark.ladder import RUNGS
    from scripts.lab.benchmark.simulate import Question, list_assumptions, span_overheads

    question = Question(
        gpu=gpu,
        pair=pair,
        strategy=strategy,
        n=n,
        workload=workload,
        problems=problems,
        share=memory,
    )
    total = len(OVERHEADS) * len(RUNGS) * problems
    with show_bar("simulating", total, unit="runs") as advance:
        bench, rows = span_overheads(question, RUNGS, load_config(), advance)
    basis = list_assumptions(bench, question)
    if as_json:
        output.print_json({**basis, "rungs": rows})
        return
    lowest, typical, highest = (OVERHEADS[name] for name in ("low", "typical", "high"))
    output.say(
        f"SIMULATED: {basis['pair']}, {basis['strategy']} n={basis['n']} on"
        f" {basis['device']['name']}, {format_size(basis['kv_bytes'])} for KV\n"
        f"{basis['about']}; means of {basis['problems']} problems, in virtual time\n"
    )
    output.print_table(COLUMNS, map(_format_rung, rows), "nothing was simulated")
    output.say(
        "goodput: tokens/s of a completed path; KV peak: most KV that each engine's requests held\n"
        "gain: over the stock loop, which scores whole paths; over prefix cache: over a stock\n"
        "loop whose verifier has one"
    )
    if not all(row["same_trees"] for row in rows):
        output.say("! not every rung built the stock loop's trees")
    output.say(
        f"Assumed overheads: {typical}. A gain's range is from {lowest} to {highest}.\n"
        "This is a roofline model of the card, from its data sheet. It is not a measurement."
    )


def _format_rung(row: dict[str, Any]) -> tuple[object, ...]:
    peaks = (row["generator_peak_bytes"] / 2**30, row["verifier_peak_bytes"] / 2**30)
    return (
        row["about"],
        *(f"{row[name]:.2f} s" for name in ("latency_s", "generator_s", "verifier_s")),
        f"{row['goodput']:.1f}",
        _format_gain(row["goodput_gain"], row["gain_range"]),
        _format_gain(row["gain_over_suffix"], row["gain_over_suffix_range"]),
        f"{peaks[0]:.2f} + {peaks[1]:.2f}",
    )


def _format_gain(gain: float, span: Sequence[float]) -> str:
    return f"{gain:.2f}x ({span[0]:.2f}-{span[1]:.2f})"
