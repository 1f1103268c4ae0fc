"""The options of `solve`, in the panels of its help.

The help shows the defaults of `runtime.request.request.Request`; the daemon fills them in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashedge.cli.solve.strategy_flags import STRATEGY_NAMES, complete_strategy

SEARCH, SAMPLING, LIMITS = "Search", "Sampling", "Limits"
EARLY_EXIT, BATCH, OUTPUT = "Early exit", "Many problems", "Output"
ORDER = "Order"

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
        help=f"{', '.join(STRATEGY_NAMES)}. beam-16 means beam with --n 16.",
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
Branching = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Children of each kept path.",
        show_default="4",
        rich_help_panel=SEARCH,
    ),
]
Aggregate = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="How step scores become a path's score: last, min, prod, mean.",
        show_default="last",
        rich_help_panel=SEARCH,
    ),
]
Selection = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="How the answer is chosen: weighted, majority, best.",
        show_default="weighted; best with --answers whole",
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
        help="An option of the strategy, such as c=0.5 or window=4. Repeatable.",
        rich_help_panel=SEARCH,
    ),
]
Baseline = Annotated[
    bool,
    typer.Option(
        "--baseline",
        help="Run the stock loop, without optimizations, for comparison. The engines stay as they"
        " are set for FlashEdge.",
        rich_help_panel=SEARCH,
    ),
]
Deterministic = Annotated[
    bool | None,
    typer.Option(
        "--deterministic/--no-deterministic",
        help="Give the same tree, to the bit, whatever else runs, also where the kernels' results"
        " depend on it. No --deadline, no boosting, no --baseline.",
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
TopP = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Sample from the likeliest tokens of this total probability.",
        show_default="1",
        rich_help_panel=SAMPLING,
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Sample from the N likeliest tokens; 0 is off.",
        show_default="0",
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
MaxStepTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens of a step.",
        show_default="the pair's",
        rich_help_panel=LIMITS,
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most steps of a path.",
        show_default="40",
        rich_help_panel=LIMITS,
    ),
]
StepRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Where a step ends: blank_line, markers (Wait, Alternatively, …), tokens"
        " (after --max-step-tokens) or entropy (where the model is unsure).",
        show_default="the pair's, blank_line",
        rich_help_panel=SEARCH,
    ),
]
StepEntropy = Annotated[
    float | None,
    typer.Option(
        metavar="NATS",
        help="With --step-rule entropy: how unsure the model is where a step ends, 0 to 3.",
        show_default="the pair's, 1",
        rich_help_panel=SEARCH,
    ),
]
MinStepTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --step-rule entropy: least tokens of a step.",
        show_default="the pair's, 16",
        rich_help_panel=SEARCH,
    ),
]
Judge = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What the verifier sees: steps, or only the answer behind the thinking.",
        show_default="the pair's, steps",
        rich_help_panel=SEARCH,
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
    bool,
    typer.Option(
        "--early-exit",
        help="Stop as soon as the answer is settled.",
        rich_help_panel=EARLY_EXIT,
    ),
]
NoEarlyExit = Annotated[
    bool,
    typer.Option(
        "--no-early-exit",
        help="Never stop early (self_consistency and probed_cot do).",
        rich_help_panel=EARLY_EXIT,
    ),
]
ExitPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="lead, static, every_5, every_step, length, initial_curve, dynamic_curve.",
        show_default="the calibration's, or the strategy's",
        rich_help_panel=EARLY_EXIT,
    ),
]
Thresholds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Least certainty at which to stop: entropy=0.8, reward=0.9. Repeatable.",
        rich_help_panel=EARLY_EXIT,
    ),
]
Detect = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Paths, rollouts or probes before certainty is first measured.",
        rich_help_panel=EARLY_EXIT,
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
        "--retry-failed",
        help="Solve the failed problems of --output again.",
        rich_help_panel=BATCH,
    ),
]
Tree = Annotated[
    bool,
    typer.Option("--tree", help="Leave the whole tree below, not only the best path."),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the run's object as JSON.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only the answer.", rich_help_panel=OUTPUT),
]
