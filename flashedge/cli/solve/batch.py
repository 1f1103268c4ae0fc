"""`solve --input`: solve a file of problems and write the results as they finish."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.client.words import format_count
from flashedge.config import Config
from flashedge.errors import ConfigError, RequestError
from flashedge.files.journal import translate_os_errors

if TYPE_CHECKING:
    from flashedge.batch.attempts import Attempts
    from flashedge.batch.batch import Batch, Budget
    from flashedge.batch.journal import BatchRecord, SheetJournal

MAX_JOBS = 64
"""Most problems in flight. Chosen by hand: each holds a request to the daemon open, and only
`max_running` of their searches run at once."""
NAME = "batch"
"""The name of the client, by which the daemon lets clients take turns."""


def check_unused(**flags: object) -> None:
    """Raises RequestError when an option of --input is given without it."""
    for name, value in flags.items():
        if value is not None and value is not False:
            flag = "--" + name.replace("_", "-")
            raise RequestError(f"{flag} needs --input", hint="add --input FILE", param=name)


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
    """Solve a file of problems, continuing where an earlier call ended. Exits 1 if one failed.

    settings: the fields of a request, without the problem. They decide the results, so a call that
    continues must have the same; priority and program may differ. The first interrupt waits for the
    searches in flight, the second one cancels them. Both then raise KeyboardInterrupt.

    Raises ConfigError, RequestError, DaemonError, EngineError, StoreError, Conflict.
    """
    from flashedge.answers.pairwise import are_alike
    from flashedge.answers.workers.mathematics import MathGrader
    from flashedge.batch.attempts import Attempts
    from flashedge.batch.batch import Batch, Budget
    from flashedge.batch.journal import BatchRecord, SheetJournal, read_distinct_problems
    from flashedge.daemon import control as daemon_control

    jobs = 2 * config.max_running if jobs is None else jobs
    target = check_files(source, target, jobs, example="results.jsonl")
    problems = read_distinct_problems(source)
    budget = None
    if budget_tokens_total is not None:
        budget = Budget(total_tokens=budget_tokens_total, cap_tokens=settings.get("token_budget"))
        budget.split_evenly(len(problems))
    with connect_ready(config) as client:
        settings = {"pair": client.status()["pair"], **settings}

    async def compare_texts(given: str, right: str) -> bool:
        return are_alike(given, right)

    async def solve() -> None:
        """Raises KeyboardInterrupt after an interrupt."""
        grader = MathGrader()
        grade = compare_texts if settings.get("answers") in ("text", "whole") else grader.equal
        async with daemon_control.connect_async(config, name=NAME, program=program) as client:
            attempts = Attempts(
                client,
                journal.key,
                settings if priority is None else {**settings, "priority": priority},
                retry_failed=retry_failed,
                notify=lambda: refresh(batch, attempts),
            )
            with show_progress(journal, len(problems), show=not quiet) as refresh:
                batch = Batch(problems, attempts, journal, grade, jobs=jobs, budget=budget)
                try:
                    with _stop_on_interrupt(batch, attempts):
                        await batch.run()
                except asyncio.CancelledError:
                    if not batch.is_stopping:
                        raise
                    output.note(f"cancelled {format_count(batch.num_cancelled, 'run')}")
                finally:
                    await grader.close()
            if batch.is_stopping:
                raise KeyboardInterrupt

    items = [(problem.id, problem.text, problem.answer) for problem in problems]
    with SheetJournal(target, items, settings, BatchRecord) as journal:
        fill(journal, len(problems), solve, retry_failed=retry_failed)
        _print_summary(journal, len(problems), budget, as_json=as_json)
        if journal.failed:
            raise typer.Exit(output.NO_RESULT)


def check_files(source: Path, target: Path | None, jobs: int, *, example: str) -> Path:
    """The file of results. example: its name in a hint.

    Raises RequestError if `target` is None or `jobs` is out of range, ConfigError if it is
    `source`, StoreError if the files can't be looked at.
    """
    if target is None:
        raise RequestError("--input needs --output", hint=f"add --output {example}", param="output")
    if not 1 <= jobs <= MAX_JOBS:
        raise RequestError(f"--jobs is {jobs}; it must be in [1, {MAX_JOBS}]", param="jobs")
    with translate_os_errors(target):
        if source.exists() and target.exists() and target.samefile(source):
            raise ConfigError(f"{target} is the input; choose another --output", param="output")
    return target


def fill(
    journal: SheetJournal[Any],
    total: int,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    retry_failed: bool,
) -> None:
    """Run the work that fills a journal, and say how far it came if it did not do all `total`."""
    if retry_failed:
        journal.drop(journal.failed)
    try:
        asyncio.run(work())
    finally:
        if (done := len(journal.records)) < total:
            output.note(f"{done} of {total} done; the same command resumes")


@contextmanager
def _stop_on_interrupt(batch: Batch, attempts: Attempts) -> Iterator[None]:
    """After Ctrl-C no run begins, and those in flight may end. A second Ctrl-C cancels the task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stops: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if stops:
            task.cancel()
            return
        output.note(
            f"stopping when all searches in flight are done ({len(attempts.running_tokens)});"
            " Ctrl-C again cancels them"
        )
        stops.append(loop.create_task(batch.stop()))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def show_progress(
    journal: SheetJournal[BatchRecord], total: int, *, show: bool
) -> Iterator[Callable[[Batch, Attempts], None]]:
    """Show a progress bar, on terminals only. Yields a function to call after each change."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from flashedge.batch.journal import Tally

    console = output.stderr()
    if not show or not console.is_terminal:
        yield lambda batch, attempts: None
        return
    words = output.build_text_column("{task.description}")
    columns = (BarColumn(), MofNCompleteColumn(), words, TimeRemainingColumn())
    speed = TokenSpeed()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, completed=len(journal.records))

        def refresh(batch: Batch, attempts: Attempts) -> None:
            totals = Tally(journal.records.values())
            running = attempts.running_tokens
            tokens = batch.tokens + sum(running)
            per_s = speed.measure(tokens, time.monotonic())
            parts = [f"{len(running)} running", f"{tokens:,} tokens", f"{per_s:,.0f}/s"]
            if totals.accuracy is not None:
                parts.insert(0, f"{totals.accuracy:.1%} right")
            if totals.failed:
                parts.append(f"{totals.failed} failed")
            progress.update(task, completed=totals.done, description=", ".join(parts))

        yield refresh


class TokenSpeed:
    """Tokens a second over the last five seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def measure(self, tokens: int, now_s: float) -> float:
        """The tokens/s, 0 at the first call. tokens: how many there are at the time `now_s`.

        A run that just ended may be missing from `tokens` for a moment, so a count below the last
        one is taken as equal to it.
        """
        most = max(tokens, self._seen[-1][1]) if self._seen else tokens
        self._seen.append((now_s, most))
        while now_s - self._seen[0][0] > 5.0 and len(self._seen) > 2:
            self._seen.popleft()
        began_s, before = self._seen[0]
        return (most - before) / (now_s - began_s) if now_s > began_s else 0.0


def _print_summary(
    journal: SheetJournal[BatchRecord], total: int, budget: Budget | None, *, as_json: bool
) -> None:
    """Print one line, or one object, on stdout."""
    from flashedge.batch.journal import Tally

    totals = Tally(journal.records.values())
    if as_json:
        names = ("failed", "graded", "correct", "accuracy", "tokens")
        told = {"output": str(journal.path), "problems": total}
        told |= {name: getattr(totals, name) for name in names}
        told |= {"budget_tokens_total": budget and budget.total_tokens, "cut_by_budget": totals.cut}
        output.print_json(told)
        return
    parts = [f"{total - totals.failed} of {total} solved"]
    if totals.accuracy is not None:
        parts.append(f"{totals.accuracy:.1%} right ({totals.correct} of {totals.graded})")
    tokens = f"{totals.tokens:,} tokens"
    if budget is not None:
        tokens += f" of {budget.total_tokens:,}"
        if totals.cut:
            tokens += f": used up, {format_count(totals.cut, 'run')} cut short"
    output.say(f"{', '.join([*parts, tokens])}: {journal.path}")
