"""The options of `solve`, in the panels of its help.

The help shows the defaults of `runtime.request.request.Request`; the daemon fills them in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashedge.cli.solve.strategy_flags import complete_strategy
from flashedge.types import STRATEGIES

SEARCH, SAMPLING, LIMITS = "Search", "Sampling", "Limits"
ORDER, BATCH, OUTPUT = "Order", "Many problems", "Output"

Problem = Annotated[
    str | None,
    typer.Argument(
        metavar="PROBLEM", help="The problem. Without it, or with -, standard input is read."
    ),
]
ProblemFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read the problem from a file.")
]
Pair = Annotated[
    str | None,
    typer.Option(
        metavar="PAIR",
        help="Pair of models: any whose files are here. It is loaded if it is not yet.",
        show_default="the daemon's",
        rich_help_panel=SEARCH,
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[-N]",
        help=f"{', '.join(STRATEGIES)}. beam-16 means beam with --n 16.",
        show_default="beam; best_of_n if the verifier judges whole answers",
        autocompletion=complete_strategy,
        rich_help_panel=SEARCH,
    ),
]
Paths = Annotated[
    int | None,
    typer.Option(
        "--n",
        "-n",
        metavar="N",
        help="Paths to complete.",
        show_default="16",
        rich_help_panel=SEARCH,
    ),
]
Answers = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="boxed: the answer stands in \\boxed{}. text: open-ended, the last step, grouped by"
        " meaning. whole: all of the text; the verifier alone chooses."
        " json: the box, else the text, in which JSON is compared as JSON.",
        show_default="boxed",
        rich_help_panel=SEARCH,
    ),
]
StrategyOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another field of the request (below), or an option of the strategy, such as c=0.5 or"
        " window=4. Repeatable.",
        rich_help_panel=SEARCH,
    ),
]
Deterministic = Annotated[
    bool | None,
    typer.Option(
        "--deterministic/--no-deterministic",
        help="Give the same tree, to the bit, whatever else runs, also where the kernels' results"
        " depend on it. No --deadline, no boosting, no baseline.",
        show_default="the setting deterministic_searches",
        rich_help_panel=SEARCH,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="The same seed gives the same tree.",
        show_default="0",
        rich_help_panel=SAMPLING,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Sampling temperature; 0 is greedy.",
        show_default="the pair's, 0.8",
        rich_help_panel=SAMPLING,
    ),
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Let a model that can think do so before its answer, or not.",
        show_default="the pair's",
        rich_help_panel=SAMPLING,
    ),
]
PathTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens of a path. A longer path is cut.",
        show_default="the pair's",
        rich_help_panel=LIMITS,
    ),
]
TreeBudget = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most tokens of the whole tree.", rich_help_panel=LIMITS),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Stop after this time and answer from what is there.",
        rich_help_panel=LIMITS,
    ),
]
EarlyExit = Annotated[
    bool | None,
    typer.Option(
        "--early-exit/--no-early-exit",
        help="Stop as soon as the answer is settled, or never.",
        show_default="self_consistency and probed_cot stop",
        rich_help_panel=LIMITS,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="0: in the usual order. 1 or more: background work, which starts when no chat and no"
        " other search waits.",
        show_default="0; 1 with --input",
        rich_help_panel=ORDER,
    ),
]
Program = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The piece of work that this is a part of. Once one search of that name runs, the"
        " others go before work that has not started.",
        show_default="a piece of work of its own",
        rich_help_panel=ORDER,
    ),
]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Solve many problems: JSON lines with the key problem.",
        rich_help_panel=BATCH,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Results of --input, one JSON line each. The same command resumes.",
        rich_help_panel=BATCH,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Problems in flight.",
        show_default="2 x max_running",
        rich_help_panel=BATCH,
    ),
]
TotalBudget = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most tokens of all trees together.", rich_help_panel=BATCH),
]
RetryFailed = Annotated[
    bool,
    typer.Option(
        "--retry-failed", help="Solve the failed problems of --output again.", rich_help_panel=BATCH
    ),
]
Tree = Annotated[
    bool,
    typer.Option(
        "--tree", help="Leave the whole tree below, not only the best path.", rich_help_panel=OUTPUT
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the run's object as JSON.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the answer.", rich_help_panel=OUTPUT)
]
