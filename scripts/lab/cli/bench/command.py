"""`bench`: the list of its commands."""

from __future__ import annotations

import typer

from scripts.lab.cli.bench import flashtts, load

app = typer.Typer(
    help="Measure what optimizations gain, and how a load of many programs fares.",
    no_args_is_help=True,
    add_completion=False,
)
app.command(name="flashtts")(flashtts.flashtts)
app.command(name="load", epilog=load.EPILOG)(load.load)
