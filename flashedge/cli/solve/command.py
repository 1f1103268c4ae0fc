"""`solve`: one problem by search, or with `--input` a file of problems (see `batch`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.connection import connect_ready
from flashedge.cli.solve import batch, options
from flashedge.cli.solve.result import print_result, warn_about
from flashedge.cli.solve.run_display import follow_run
from flashedge.cli.solve.strategy_flags import (
    build_exit_field,
    check_finite,
    parse_assignments,
    parse_strategy_flags,
)
from flashedge.config import load_config
from flashedge.errors import ConfigError, RequestError, StoreError
from flashedge.models.registry import find_pair

EPILOG = """\
[bold]Examples[/]
  flashedge solve "Dan has 24 nuts and wins 20. How many has he now?" -n 32
  flashedge solve --strategy mcts-20 --early-exit < problem.txt
  flashedge solve --input problems.jsonl --output results.jsonl

docs/strategies.md describes the strategies and their own options (--set).
"""


def solve(
    problem: options.Problem = None,
    file: options.ProblemFile = None,
    pair: options.Pair = None,
    strategy: options.Strategy = None,
    n: options.Paths = None,
    branching: options.Branching = None,
    aggregate: options.Aggregate = None,
    selection: options.Selection = None,
    answers: options.Answers = None,
    step_rule: options.StepRule = None,
    step_entropy: options.StepEntropy = None,
    min_step_tokens: options.MinStepTokens = None,
    judge: options.Judge = None,
    option: options.StrategyOptions = None,
    baseline: options.Baseline = False,
    deterministic: options.Deterministic = None,
    seed: options.Seed = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    thinking: options.Thinking = None,
    max_step_tokens: options.MaxStepTokens = None,
    max_steps: options.MaxSteps = None,
    max_tokens: options.PathTokens = None,
    budget_tokens: options.TreeBudget = None,
    deadline: options.Deadline = None,
    early_exit: options.EarlyExit = False,
    no_early_exit: options.NoEarlyExit = False,
    exit_policy: options.ExitPolicy = None,
    threshold: options.Thresholds = None,
    detect: options.Detect = None,
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

    The answer is printed on stdout, the growing tree and then the best path on stderr. Without an
    answer stdout stays empty, and the exit code is 1.
    """
    if early_exit and no_early_exit:
        raise RequestError("--early-exit and --no-early-exit contradict each other")
    strategy, n = parse_strategy_flags(strategy, n)
    wants_exit = True if early_exit else False if no_early_exit else None
    given = {
        "pair": pair,
        "strategy": strategy,
        "n": n,
        "branching": branching,
        "aggregate": aggregate,
        "selection": selection,
        "seed": seed,
        "temperature": check_finite("temperature", temperature),
        "top_p": check_finite("top_p", top_p),
        "top_k": top_k,
        "max_step_tokens": max_step_tokens,
        "max_steps": max_steps,
        "max_tokens": max_tokens,
        "token_budget": budget_tokens,
        "deadline_s": check_finite("deadline", deadline),
        "baseline": baseline or None,
        "deterministic": deterministic,
        "answers": answers,
        "step_rule": step_rule,
        "step_entropy": check_finite("step_entropy", step_entropy),
        "min_step_tokens": min_step_tokens,
        "judge": judge,
        "early_exit": build_exit_field(wants_exit, exit_policy, threshold, detect),
        "options": parse_assignments("--set", option) or None,
        "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
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
    """The problem's text: the argument, the file, or standard input.

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
