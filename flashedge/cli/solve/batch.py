"""`solve --input`: a file of problems, results as they finish, a bar on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.config import Config
from flashedge.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from flashedge.batch.batch import Batch, Budget
    from flashedge.batch.ledger import Ledger
    from flashedge.files.problems import FileProblem

MAX_JOBS = 64


def check_unused(**flags: object) -> None:
    """Raises RequestError when a flag of batch mode is given without it."""
    for name, value in flags.items():
        if value not in (None, False):
            flag = "--" + name.replace("_", "-")
            raise RequestError(f"{flag} needs --input", hint="--input problems.jsonl", param=name)


def solve_batch(
    settings: Mapping[str, Any],
    source: Path,
    target: Path | None,
    config: Config,
    *,
    jobs: int | None,
    budget_tokens_total: int | None,
    retry_failed: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Solve a file of problems, going on where an earlier call ended. settings: the request's
    fields, but the problem. Exit code 1 if a problem failed.

    Raises ConfigError, RequestError, DaemonError, EngineError, StoreError, Conflict.
    """
    from flashedge.batch.batch import failed
    from flashedge.batch.ledger import Ledger
    from flashedge.batch.problems import batch_problems, digest
    from flashedge.batch.record import tally

    if target is None:
        raise RequestError("--input needs --output", hint="--output results.jsonl", param="output")
    jobs = 2 * config.max_running if jobs is None else jobs
    if not 1 <= jobs <= MAX_JOBS:
        raise RequestError(f"--jobs is {jobs}; it must be in [1, {MAX_JOBS}]", param="jobs")
    problems = batch_problems(source)
    if target.exists() and target.samefile(source):
        raise ConfigError(f"{target} is the input; give another --output", param="output")
    budget = _budget(budget_tokens_total, settings, len(problems))
    with connect_ready(config) as client:
        pair = client.status()["pair"]
    settings = {"pair": pair, **settings}
    with Ledger(target, {"input": digest(problems), "settings": settings}) as ledger:
        if retry_failed:
            ledger.drop(failed(ledger))
        try:
            asyncio.run(
                _solve(problems, ledger, settings, config, budget, jobs, retry_failed, quiet)
            )
        finally:
            told = tally(ledger.records)
            if told.done < len(problems):
                output.note(f"{told.done} of {len(problems)} done; the same command goes on")
        _summary(ledger, len(problems), budget, as_json=as_json)
        if told.failed:
            raise typer.Exit(1)


def _budget(total: int | None, settings: Mapping[str, Any], num_problems: int) -> Budget | None:
    from flashedge.batch.batch import Budget

    if total is None:
        return None
    budget = Budget(total_tokens=total, cap_tokens=settings.get("token_budget"))
    budget.first_shares(num_problems)
    return budget


async def _solve(
    problems: tuple[FileProblem, ...],
    ledger: Ledger,
    settings: Mapping[str, Any],
    config: Config,
    budget: Budget | None,
    jobs: int,
    retry_failed: bool,
    quiet: bool,
) -> None:
    from flashedge.answers.words import are_alike
    from flashedge.answers.workers.mathematics import MathGrader
    from flashedge.batch.attempts import Attempts
    from flashedge.batch.batch import Batch
    from flashedge.daemon import control as daemon_control

    grader = MathGrader()

    async def similar(given: str, right: str) -> bool:
        return are_alike(given, right)

    async with daemon_control.connect_async(config) as client:
        attempts = Attempts(client, ledger.key, settings, retry_failed=retry_failed)
        grade = similar if settings.get("answers") == "text" else grader.equal
        with bar(ledger, len(problems), show=not quiet) as tell:
            batch = Batch(
                problems,
                attempts,
                ledger,
                grade,
                jobs=jobs,
                budget=budget,
                tell=lambda: tell(batch),
            )
            try:
                await batch.run()
            finally:
                await grader.close()


@contextmanager
def bar(ledger: Ledger, total: int, *, show: bool) -> Iterator[Callable[[Batch], None]]:
    """A progress bar on a terminal, nothing elsewhere; its value takes note of a change."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from flashedge.batch.record import tally

    console = output.stderr()
    if not show or not console.is_terminal:
        yield lambda batch: None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, completed=len(ledger.records))

        def tell(batch: Batch) -> None:
            told = tally(ledger.records)
            said = [f"{batch.tokens:,} tokens"]
            if told.accuracy is not None:
                said.insert(0, f"{told.accuracy:.1%} right")
            if told.failed:
                said.append(f"{told.failed} failed")
            progress.update(task, completed=told.done, description=", ".join(said))

        yield tell


def _summary(ledger: Ledger, total: int, budget: Budget | None, *, as_json: bool) -> None:
    """One line, or one object, on stdout."""
    from flashedge.batch.record import tally

    told = tally(ledger.records)
    if as_json:
        output.print_json(
            {
                "output": str(ledger.path),
                "problems": total,
                "failed": told.failed,
                "graded": told.graded,
                "correct": told.correct,
                "accuracy": told.accuracy,
                "tokens": told.tokens,
                "budget_tokens_total": budget.total_tokens if budget else None,
                "cut_by_budget": told.cut,
            }
        )
        return
    parts = [f"{total - told.failed} of {total} solved"]
    if told.accuracy is not None:
        parts.append(f"{told.accuracy:.1%} right ({told.correct} of {told.graded})")
    parts.append(f"{told.tokens:,} tokens")
    if budget is not None:
        of = f" of {budget.total_tokens:,}"
        parts[-1] += f"{of}: used up, {told.cut} cut short" if told.cut else of
    print(f"{', '.join(parts)}: {ledger.path}", flush=True)
