"""`solve --input`: solve a file of problems and write the results as they finish."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.connection import connect_ready
from flashedge.client.words import format_count
from flashedge.config import Config
from flashedge.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from flashedge.batch.attempts import Attempts
    from flashedge.batch.batch import Batch, Budget
    from flashedge.batch.journal import BatchJournal
    from flashedge.files.problems import FileProblem
    from flashedge.scheduling.programs.program import Caller

MAX_JOBS = 64
NAME = "batch"
"""Of a batch among the daemon's clients, which take turns."""
SPEED_S = 5.0
"""Time over which tokens a second are counted."""


def check_unused(**flags: object) -> None:
    """Raises RequestError when an option of --input is given without it."""
    for name, value in flags.items():
        if value not in (None, False):
            flag = "--" + name.replace("_", "-")
            raise RequestError(
                f"{flag} needs --input", hint="add --input problems.jsonl", param=name
            )


def solve_batch(
    settings: Mapping[str, Any],
    source: Path,
    target: Path | None,
    config: Config,
    *,
    jobs: int | None,
    budget_tokens_total: int | None,
    priority: int | None,
    program: str | None,
    retry_failed: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Solve a file of problems, continuing where an earlier call ended.

    `settings` are the fields of a request, without the problem. They decide the results, so the
    same command must give them again; priority and program may differ. Exits 1 if a problem failed.
    The first interrupt lets the runs end that run, the second one cancels them. Both then raise
    KeyboardInterrupt.

    Raises ConfigError, RequestError, DaemonError, EngineError, StoreError, Conflict.
    """
    from flashedge.batch.attempts import BATCH_PRIORITY
    from flashedge.batch.journal import BatchJournal
    from flashedge.batch.record import (
        count_records,
        digest_problems,
        list_failed,
        read_distinct_problems,
    )
    from flashedge.scheduling.programs.program import Caller

    jobs = 2 * config.max_running if jobs is None else jobs
    target = check_batch(target, jobs, example="results.jsonl")
    problems = read_distinct_problems(source)
    check_output(source, target)
    budget = _budget(budget_tokens_total, settings, len(problems))
    caller = Caller(
        client=NAME, program=program, priority=BATCH_PRIORITY if priority is None else priority
    )
    with connect_ready(config) as client:
        pair = client.status()["pair"]
    settings = {"pair": pair, **settings}
    with BatchJournal(target, digest_problems(problems), settings) as journal:
        if retry_failed:
            journal.drop(list_failed(journal.records))
        try:
            is_whole = asyncio.run(
                _solve(
                    problems, journal, settings, config, budget, jobs, caller, retry_failed, quiet
                )
            )
            if not is_whole:
                raise KeyboardInterrupt
        finally:
            totals = count_records(journal.records)
            if totals.done < len(problems):
                output.note(f"{totals.done} of {len(problems)} done; the same command resumes")
        _summary(journal, len(problems), budget, as_json=as_json)
        if totals.failed:
            raise typer.Exit(exit_codes.NO_RESULT)


def check_batch(target: Path | None, jobs: int, *, example: str) -> Path:
    """The file of results, where one is named. example: of its name. Raises RequestError."""
    if target is None:
        raise RequestError("--input needs --output", hint=f"add --output {example}", param="output")
    if not 1 <= jobs <= MAX_JOBS:
        raise RequestError(f"--jobs is {jobs}; it must be in [1, {MAX_JOBS}]", param="jobs")
    return target


def check_output(source: Path, target: Path) -> None:
    """Raises ConfigError where the results would replace the input, which is there."""
    if target.exists() and target.samefile(source):
        raise ConfigError(f"{target} is the input file; choose another --output", param="output")


def _budget(total: int | None, settings: Mapping[str, Any], num_problems: int) -> Budget | None:
    from flashedge.batch.batch import Budget

    if total is None:
        return None
    budget = Budget(total_tokens=total, cap_tokens=settings.get("token_budget"))
    budget.split_evenly(num_problems)
    return budget


async def _solve(
    problems: tuple[FileProblem, ...],
    journal: BatchJournal,
    settings: Mapping[str, Any],
    config: Config,
    budget: Budget | None,
    jobs: int,
    caller: Caller,
    retry_failed: bool,
    quiet: bool,
) -> bool:
    """Solve the problems. Whether no interrupt came. Raises KeyboardInterrupt at the second one."""
    from flashedge.answers.groups import are_alike
    from flashedge.answers.workers.mathematics import MathGrader
    from flashedge.batch.attempts import Attempts
    from flashedge.batch.batch import Batch
    from flashedge.daemon import control as daemon_control

    grader = MathGrader()

    async def similar(given: str, right: str) -> bool:
        return are_alike(given, right)

    connection = daemon_control.connect_async(config, name=caller.client, program=caller.program)
    async with connection as client:
        attempts = Attempts(
            client,
            journal.key,
            settings,
            priority=caller.priority,
            retry_failed=retry_failed,
            notify=lambda: refresh(batch, attempts),
        )
        grade = similar if settings.get("answers") in ("text", "whole") else grader.equal
        with show_progress(journal, len(problems), show=not quiet) as refresh:
            batch = Batch(
                problems,
                attempts,
                journal,
                grade,
                jobs=jobs,
                budget=budget,
                notify=lambda: refresh(batch, attempts),
            )
            try:
                with _stop_on_interrupt(batch, attempts):
                    await batch.run()
            except asyncio.CancelledError:
                if not batch.is_stopping:
                    raise
                output.note(f"cancelled {format_count(batch.cancelled, 'run')}")
                raise KeyboardInterrupt from None
            finally:
                await grader.close()
        return not batch.is_stopping


@contextmanager
def _stop_on_interrupt(batch: Batch, attempts: Attempts) -> Iterator[None]:
    """Ctrl-C begins no more runs and lets those that run end. A second one cancels the task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stops: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if stops:
            task.cancel()
            return
        running = sum(run.is_running for run in attempts.open)
        counted = "1 search" if running == 1 else f"{running} searches"
        output.note(f"stopping after {counted} that run; Ctrl-C again cancels them")
        stops.append(loop.create_task(batch.stop()))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def show_progress(
    journal: BatchJournal, total: int, *, show: bool
) -> Iterator[Callable[[Batch, Attempts], None]]:
    """A progress bar, on terminals only. Call the value after each change of the batch."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from flashedge.batch.record import count_records

    console = output.stderr()
    if not show or not console.is_terminal:
        yield lambda batch, attempts: None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        output.build_text_column("{task.description}"),
        TimeRemainingColumn(),
    )
    speed = TokenSpeed()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, completed=len(journal.records))

        def refresh(batch: Batch, attempts: Attempts) -> None:
            totals = count_records(journal.records)
            tokens = batch.tokens + sum(run.tokens for run in attempts.open)
            speed.note(tokens, time.monotonic())
            running = sum(run.is_running for run in attempts.open)
            parts = [f"{running} running", f"{tokens:,} tokens", f"{speed.per_s():,.0f}/s"]
            if totals.accuracy is not None:
                parts.insert(0, f"{totals.accuracy:.1%} right")
            if totals.failed:
                parts.append(f"{totals.failed} failed")
            progress.update(task, completed=totals.done, description=", ".join(parts))

        yield refresh


class TokenSpeed:
    """Tokens a second over the last `SPEED_S`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, tokens: int, now_s: float) -> None:
        """So many tokens are there by now. A run that just ended may be missing for a moment."""
        most = max(tokens, self._seen[-1][1]) if self._seen else tokens
        self._seen.append((now_s, most))
        while now_s - self._seen[0][0] > SPEED_S and len(self._seen) > 2:
            self._seen.popleft()

    def per_s(self) -> float:
        """0 until time has passed."""
        if not self._seen:
            return 0.0
        (began_s, before), (now_s, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now_s - began_s) if now_s > began_s else 0.0


def _summary(journal: BatchJournal, total: int, budget: Budget | None, *, as_json: bool) -> None:
    """Print one line, or one object, on stdout."""
    from flashedge.batch.record import count_records

    totals = count_records(journal.records)
    if as_json:
        output.print_json(
            {
                "output": str(journal.path),
                "problems": total,
                "failed": totals.failed,
                "graded": totals.graded,
                "correct": totals.correct,
                "accuracy": totals.accuracy,
                "tokens": totals.tokens,
                "budget_tokens_total": budget.total_tokens if budget else None,
                "cut_by_budget": totals.cut,
            }
        )
        return
    parts = [f"{total - totals.failed} of {total} solved"]
    if totals.accuracy is not None:
        parts.append(f"{totals.accuracy:.1%} right ({totals.correct} of {totals.graded})")
    parts.append(f"{totals.tokens:,} tokens")
    if budget is not None:
        limit = f" of {budget.total_tokens:,}"
        parts[-1] += (
            f"{limit}: used up, {format_count(totals.cut, 'run')} cut short"
            if totals.cut
            else limit
        )
    output.say(f"{', '.join(parts)}: {journal.path}")
