"""`lengths train|show|eval`: predict how long outputs get."""

from __future__ import annotations

import typer

from flashedge.cli.lengths.evaluate import evaluate
from flashedge.cli.lengths.show import show
from flashedge.cli.lengths.train import train

EPILOG = """\
[bold]Examples[/]
  flashedge lengths train
  flashedge lengths train lengths.jsonl --dry-run
  flashedge lengths show "What is 12 + 7?"
  flashedge lengths eval

A line of a file: {"prompt": "What is 12 + 7?", "lengths": [31, 64], "cut": \\[false, true]}
"""
app = typer.Typer(
    help="Predict how long outputs get, so that short work goes first.",
    no_args_is_help=True,
    epilog=EPILOG,
)
app.command(name="train")(train)
app.command(name="show")(show)
app.command(name="eval")(evaluate)
