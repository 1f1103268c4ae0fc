"""The options of `bench load`, in the panels of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashedge.cli.solve.strategy_flags import complete_strategy
from flashedge.types import POLICY_NAMES

LOAD, PROGRAMS, DEADLINES, SIMULATION = "Load", "Programs", "Deadlines", "Simulated card"
OUTPUT = "Output"

Rate = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Programs a second. It needs no value with a file of arrivals.",
        rich_help_panel=LOAD,
    ),
]
Minutes = Annotated[
    float,
    typer.Option(
        metavar="X",
        min=0.01,
        max=1440.0,
        help="How long programs arrive. The load lasts until the last one has finished.",
        rich_help_panel=LOAD,
    ),
]
Arrivals = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="poisson: independent of each other. bursty: the same, three times as many during a"
        " fifth of the time. Else a file of seconds, one a line.",
        rich_help_panel=LOAD,
    ),
]
Mix = Annotated[
    str,
    typer.Option(
        metavar="KIND=SHARE,…",
        help="Which share of the programs are chats, searches and batch work: chat, search, batch.",
        rich_help_panel=LOAD,
    ),
]
Clients = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=10_000,
        help="Clients that the programs are from.",
        rich_help_panel=LOAD,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="The same seed gives the same programs at the same times.",
        rich_help_panel=LOAD,
    ),
]
Problems = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What is asked: JSON lines of problem (and answer, id).",
        rich_help_panel=PROGRAMS,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Use the first N problems.", rich_help_panel=PROGRAMS),
]
Pair = Annotated[
    str | None,
    typer.Option(
        metavar="PAIR",
        help="Pair of models.",
        show_default="the setting `pair`",
        rich_help_panel=PROGRAMS,
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        metavar="NAME[-N]",
        help="How searches search; beam-16 also sets --n.",
        autocompletion=complete_strategy,
        rich_help_panel=PROGRAMS,
    ),
]
Paths = Annotated[
    int | None,
    typer.Option(
        "--n",
        "-n",
        metavar="N",
        help="Paths of a search.",
        show_default="8",
        rich_help_panel=PROGRAMS,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Most tokens of a chat's answer, and of a path.",
        show_default="the pair's",
        rich_help_panel=PROGRAMS,
    ),
]
Slo = Annotated[
    str | None,
    typer.Option(
        metavar="KIND=SECONDS,…",
        help="Base deadline of each kind, such as chat=2,search=30.",
        show_default="none",
        rich_help_panel=DEADLINES,
    ),
]
SloScale = Annotated[
    float,
    typer.Option(
        metavar="X",
        min=0.001,
        help="Multiplies all deadlines.",
        rich_help_panel=DEADLINES,
    ),
]
Difficulty = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Results of `solve --input` on the same problems, many of each, or lines of id and"
        " factor. A problem that is always answered right has factor 1, never 3, else 2.",
        show_default="factor 2 for all",
        rich_help_panel=DEADLINES,
    ),
]
Simulated = Annotated[
    bool,
    typer.Option(
        "--simulated",
        help="Simulate a card in virtual time; no engine runs. Searches ask problems of MATH, chats"
        " are long, and their lengths are predicted with an error.",
        rich_help_panel=SIMULATION,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="CARD",
        help="The card: rtx3090, rtx4080, rtx4090, rtx5090.",
        show_default="rtx4090",
        rich_help_panel=SIMULATION,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Which program goes first, instead of the setting scheduling_policy: "
        f"{', '.join(POLICY_NAMES)}.",
        rich_help_panel=SIMULATION,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FOLDER",
        help="Folder for the programs and the report. The same command resumes.",
        show_default="a folder of the state directory",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=OUTPUT)
]
