"""The options of `solve`, in the panels of its help, with the defaults that the daemon fills in."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from flashedge.cli.solve.strategy_flags import complete_strategy
from flashedge.types import STRATEGIES

search_option = partial(Option, rich_help_panel="Search")
sampling_option = partial(Option, rich_help_panel="Sampling")
limit_option = partial(Option, rich_help_panel="Limits")
order_option = partial(Option, rich_help_panel="Order")
batch_option = partial(Option, rich_help_panel="Many problems")
output_option = partial(Option, rich_help_panel="Output")

Problem = Annotated[
    str | None,
    Argument(metavar="PROBLEM", help="The problem. Without it, or with -, standard input is read."),
]
ProblemFile = Annotated[Path | None, Option(metavar="FILE", help="Read the problem from a file.")]
Pair = Annotated[
    str | None,
    search_option(
        metavar="PAIR",
        help="Pair of models: any whose files are here. It is loaded if it is not yet.",
        show_default="the daemon's",
    ),
]
Strategy = Annotated[
    str | None,
    search_option(
        metavar="NAME[-N]",
        help=f"{', '.join(STRATEGIES)}. beam-16 means beam with --n 16.",
        show_default="beam; best_of_n if the verifier judges whole answers",
        autocompletion=complete_strategy,
    ),
]
Paths = Annotated[
    int | None,
    search_option("--n", "-n", metavar="N", help="Paths to complete.", show_default="16"),
]
Answers = Annotated[
    str | None,
    search_option(
        metavar="KIND",
        help="boxed: the answer stands in \\boxed{}. text: open-ended, the last step, grouped by"
        " meaning. whole: all of the text; the verifier alone chooses."
        " json: the box, else the text, in which JSON is compared as JSON.",
        show_default="boxed",
    ),
]
StrategyOptions = Annotated[
    list[str] | None,
    search_option(
        "--set",
        metavar="NAME=VALUE",
        help="Another field of the request (below), or an option of the strategy, such as c=0.5 or"
        " window=4. Repeatable.",
    ),
]
Deterministic = Annotated[
    bool | None,
    search_option(
        "--deterministic/--no-deterministic",
        help="Give the same tree, to the bit, whatever else runs, also where the kernels' results"
        " depend on it. No --deadline, no boosting, no baseline.",
        show_default="the setting deterministic_searches",
    ),
]
Seed = Annotated[
    int | None,
    sampling_option(metavar="N", help="The same seed gives the same tree.", show_default="0"),
]
Temperature = Annotated[
    float | None,
    sampling_option(
        metavar="X", help="Sampling temperature; 0 is greedy.", show_default="the pair's, 0.8"
    ),
]
Thinking = Annotated[
    bool | None,
    sampling_option(
        "--thinking/--no-thinking",
        help="Let a model that can think do so before its answer, or not.",
        show_default="the pair's",
    ),
]
PathTokens = Annotated[
    int | None,
    limit_option(
        metavar="N", help="Most tokens of a path. A longer path is cut.", show_default="the pair's"
    ),
]
TreeBudget = Annotated[int | None, limit_option(metavar="N", help="Most tokens of the whole tree.")]
Deadline = Annotated[
    float | None,
    limit_option(metavar="SECONDS", help="Stop after this time and answer from what is there."),
]
EarlyExit = Annotated[
    bool | None,
    limit_option(
        "--early-exit/--no-early-exit",
        help="Stop as soon as the answer is settled, or never.",
        show_default="self_consistency and probed_cot stop",
    ),
]
Priority = Annotated[
    int | None,
    order_option(
        metavar="N",
        min=0,
        help="0: in the usual order. 1 or more: background work, which starts when no chat and no"
        " other search waits.",
        show_default="0; 1 with --input",
    ),
]
Program = Annotated[
    str | None,
    order_option(
        metavar="NAME",
        help="The piece of work that this is a part of. Once one search of that name runs, the"
        " others go before work that has not started.",
        show_default="a piece of work of its own",
    ),
]
Input = Annotated[
    Path | None,
    batch_option(
        "--input", metavar="FILE", help="Solve many problems: JSON lines with the key problem."
    ),
]
Output = Annotated[
    Path | None,
    batch_option(
        "--output",
        metavar="FILE",
        help="Results of --input, one JSON line each. The same command resumes.",
    ),
]
Jobs = Annotated[
    int | None,
    batch_option(metavar="N", help="Problems in flight.", show_default="2 x max_running"),
]
TotalBudget = Annotated[
    int | None, batch_option(metavar="N", help="Most tokens of all trees together.")
]
RetryFailed = Annotated[
    bool, batch_option("--retry-failed", help="Solve the failed problems of --output again.")
]
Tree = Annotated[
    bool, output_option("--tree", help="Leave the whole tree below, not only the best path.")
]
Json = Annotated[bool, output_option("--json", help="Print the run's object as JSON.")]
Quiet = Annotated[bool, output_option("--quiet", "-q", help="Print only the answer.")]
