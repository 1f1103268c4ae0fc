"""`solve`: one problem by search, or with `--input` a file of problems (see `batch`)."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.cli.solve import batch
from flashedge.cli.solve import strategy_flags as flags
from flashedge.cli.solve.result import follow_run, print_result, warn_about
from flashedge.config import load_config
from flashedge.errors import ConfigError, RequestError, StoreError
from flashedge.models.registry import find_pair
from flashedge.types import STRATEGIES

_FIELDS = "\n".join(f"  {name:<28} {about}" for name, about in flags.REQUEST_FIELDS.items())
EPILOG = f"""\
[bold]Examples[/]
  flashedge solve "Dan has 24 nuts and wins 20. How many has he now?" -n 32
  flashedge solve --strategy mcts-20 --early-exit < problem.txt
  flashedge solve --input problems.jsonl --output results.jsonl

[bold]Fields of the request that --set gives[/]
{_FIELDS}

docs/strategies.md describes the strategies and their own options (--set).
"""
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
        help="Pair of models whose files are on this machine. The daemon loads it if necessary.",
        show_default="the daemon's",
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
Output = Annotated[
    Path | None,
    batch_option(
        "--output",
        metavar="FILE",
        help="Results of --input, one JSON line each. The same command resumes.",
    ),
]


def solve(
    problem: Problem = None,
    file: ProblemFile = None,
    pair: Pair = None,
    strategy: Annotated[
        str | None,
        search_option(
            metavar="NAME[-N]",
            help=f"{', '.join(STRATEGIES)}. beam-16 means beam with --n 16.",
            show_default="beam; best_of_n if the verifier judges whole answers",
            autocompletion=flags.complete_strategy,
        ),
    ] = None,
    n: Annotated[
        int | None,
        search_option("--n", "-n", metavar="N", help="Paths to complete.", show_default="16"),
    ] = None,
    answers: Annotated[
        str | None,
        search_option(
            metavar="KIND",
            help="boxed: the answer stands in \\boxed{}. text: open-ended, the last step, grouped"
            " by meaning. whole: all of the text; the verifier alone chooses."
            " json: the box, else the text, in which JSON is compared as JSON.",
            show_default="boxed",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        search_option(
            "--set",
            metavar="NAME=VALUE",
            help="Another field of the request (below), or an option of the strategy, such as c=0.5"
            " or window=4. Repeatable.",
        ),
    ] = None,
    deterministic: Annotated[
        bool | None,
        search_option(
            "--deterministic/--no-deterministic",
            help="Give the same tree, to the bit, no matter what else runs, also where the"
            " kernels' results depend on it. Excludes --deadline, boosting and the baseline.",
            show_default="the setting deterministic_searches",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        sampling_option(metavar="N", help="The same seed gives the same tree.", show_default="0"),
    ] = None,
    temperature: Annotated[
        float | None,
        sampling_option(
            metavar="X",
            help="Sampling temperature; 0 is greedy.",
            show_default="the pair's, or 0.8",
        ),
    ] = None,
    thinking: Annotated[
        bool | None,
        sampling_option(
            "--thinking/--no-thinking",
            help="Let a model that can think do so before its answer, or not.",
            show_default="the pair's",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        limit_option(
            metavar="N",
            help="Most tokens of a path. A longer path is cut.",
            show_default="the pair's",
        ),
    ] = None,
    budget_tokens: Annotated[
        int | None, limit_option(metavar="N", help="Most tokens of the whole tree.")
    ] = None,
    deadline: Annotated[
        float | None,
        limit_option(metavar="SECONDS", help="Stop after this time and answer from what is there."),
    ] = None,
    early_exit: Annotated[
        bool | None,
        limit_option(
            "--early-exit/--no-early-exit",
            help="Stop as soon as the answer is settled, or never.",
            show_default="self_consistency, deepconf and probed_cot stop",
        ),
    ] = None,
    priority: Priority = None,
    program: Program = None,
    source: Annotated[
        Path | None,
        batch_option(
            "--input", metavar="FILE", help="Solve many: JSON lines with the key problem."
        ),
    ] = None,
    target: Output = None,
    jobs: Annotated[
        int | None,
        batch_option(metavar="N", help="Problems in flight.", show_default="2 x max_running"),
    ] = None,
    budget_tokens_total: Annotated[
        int | None, batch_option(metavar="N", help="Most tokens of all trees together.")
    ] = None,
    retry_failed: Annotated[
        bool, batch_option("--retry-failed", help="Solve the failed problems of --output again.")
    ] = False,
    tree: Annotated[
        bool,
        output_option("--tree", help="Print the whole tree at the end, not only the best path."),
    ] = False,
    as_json: Annotated[bool, output_option("--json", help="Print the run as JSON.")] = False,
    quiet: Annotated[bool, output_option("--quiet", "-q", help="Print only the answer.")] = False,
) -> None:
    """Solve a problem by verifier-guided search.

    The answer is printed on stdout, the growing tree and then the best path on stderr.

    Without an answer the exit code is 1, and only --json prints anything on stdout.
    """
    strategy, n = flags.parse_strategy_flags(strategy, n)
    given = {
        "pair": pair,
        "strategy": strategy,
        "n": n,
        "seed": seed,
        "temperature": flags.check_finite("temperature", temperature),
        "max_tokens": max_tokens,
        "token_budget": budget_tokens,
        "deadline_s": flags.check_finite("deadline", deadline),
        "deterministic": deterministic,
        "answers": answers,
        "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
        **flags.build_fields(option, early_exit),
    }
    settings = {k: v for k, v in given.items() if v is not None}
    config = load_config({"pair": pair})
    if pair is not None:
        find_pair(pair, config)
    several: dict[str, int | None] = {"jobs": jobs, "budget_tokens_total": budget_tokens_total}
    if source is not None:
        if problem is not None or file is not None:
            raise RequestError("give either --input or one problem", param="input")
        batch.solve_batch(
            settings,
            source,
            target,
            config,
            **several,
            priority=priority,
            program=program,
            retry_failed=retry_failed,
            as_json=as_json,
            quiet=quiet,
        )
        return
    batch.check_unused(output=target, **several, retry_failed=retry_failed)
    body: dict[str, Any] = {"problem": read_problem(problem, file), **settings}
    if priority is not None:
        body["priority"] = priority
    with connect_ready(config, program=program) as client:
        result = follow_run(client, body, show=not quiet, off_terminal=not as_json, whole=tree)
    if as_json:
        output.print_json(result)
        warn_about(result)
    else:
        print_result(result, quiet=quiet)
    if result.get("answer") is None:
        raise typer.Exit(output.NO_RESULT)


def read_problem(problem: str | None, file: Path | None) -> str:
    """The text of the argument, of the file, or of standard input, without blanks around it.

    Raises RequestError, ConfigError or StoreError.
    """
    if problem is None and file is None and not sys.stdin.isatty():
        problem = "-"
    if (problem is None) == (file is None):
        raise RequestError(
            "give the problem once" if problem else "there is no problem to solve",
            hint="flashedge solve 'TEXT', flashedge solve --file FILE, or flashedge solve < FILE",
            param="problem",
        )
    text = read_text(file) if problem is None or problem == "-" else problem
    if not text.strip():
        raise RequestError("the problem is empty; give some text", param="problem")
    return text.strip()


def read_text(file: Path | None) -> str:
    """The text of the file, or of standard input for None. Raises StoreError, ConfigError."""
    try:
        return sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"can't read {file or 'standard input'}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"can't read {file or 'standard input'}: not UTF-8 text") from error
