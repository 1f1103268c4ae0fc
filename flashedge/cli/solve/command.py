"""`solve`: one problem by search, or with `--input` a file of problems (see `batch`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from flashedge.cli import exit_codes, output
from flashedge.cli.connection import connect_ready
from flashedge.cli.solve import batch, options
from flashedge.cli.solve.result import follow_run, print_result, warn_about
from flashedge.cli.solve.strategy_flags import (
    REQUEST_FIELDS,
    build_fields,
    check_finite,
    parse_strategy_flags,
    translate_old_flags,
)
from flashedge.config import load_config
from flashedge.errors import ConfigError, RequestError, StoreError
from flashedge.models.registry import find_pair

_FIELDS = "\n".join(f"  {name:<28} {about}" for name, about in REQUEST_FIELDS.items())
EPILOG = f"""\
[bold]Examples[/]
  flashedge solve "Dan has 24 nuts and wins 20. How many has he now?" -n 32
  flashedge solve --strategy mcts-20 --early-exit < problem.txt
  flashedge solve --input problems.jsonl --output results.jsonl

[bold]Fields of the request that --set gives[/]
{_FIELDS}

docs/strategies.md describes the strategies and their own options (--set).
"""


class Command(TyperCommand):
    """`solve`, which takes its old flags for one more version."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, translate_old_flags(args))


def solve(
    problem: options.Problem = None,
    file: options.ProblemFile = None,
    pair: options.Pair = None,
    strategy: options.Strategy = None,
    n: options.Paths = None,
    answers: options.Answers = None,
    option: options.StrategyOptions = None,
    deterministic: options.Deterministic = None,
    seed: options.Seed = None,
    temperature: options.Temperature = None,
    thinking: options.Thinking = None,
    max_tokens: options.PathTokens = None,
    budget_tokens: options.TreeBudget = None,
    deadline: options.Deadline = None,
    early_exit: options.EarlyExit = None,
    priority: options.Priority = None,
    program: options.Program = None,
    source: options.Input = None,
    target: options.Output = None,
    jobs: options.Jobs = None,
    budget_tokens_total: options.TotalBudget = None,
    retry_failed: options.RetryFailed = False,
    tree: options.Tree = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Solve a problem by verifier-guided search.

    The answer is printed on stdout, the growing tree and then the best path on stderr.

    Without an answer stdout stays empty, and the exit code is 1.
    """
    strategy, n = parse_strategy_flags(strategy, n)
    given = {
        "pair": pair,
        "strategy": strategy,
        "n": n,
        "seed": seed,
        "temperature": check_finite("temperature", temperature),
        "max_tokens": max_tokens,
        "token_budget": budget_tokens,
        "deadline_s": check_finite("deadline", deadline),
        "deterministic": deterministic,
        "answers": answers,
        "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
        **build_fields(option, early_exit),
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
        result = follow_run(client, body, show=not quiet, live=not as_json, whole=tree)
    if as_json:
        output.print_json(result)
        warn_about(result)
    else:
        print_result(result, quiet=quiet)
    if result.get("answer") is None:
        raise typer.Exit(exit_codes.NO_RESULT)


def read_problem(problem: str | None, file: Path | None) -> str:
    """The text of the argument, the file, or standard input.

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
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        elif problem == "-":
            text = sys.stdin.read()
        else:
            text = problem or ""
    except OSError as error:
        raise StoreError(f"can't read {file or 'standard input'}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"can't read {file or 'standard input'}: not UTF-8 text") from error
    if not text.strip():
        raise RequestError("the problem is empty; give some text", param="problem")
    return text.strip()
