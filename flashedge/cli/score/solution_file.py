"""`score --input`: score a file of solutions and write the lines with their scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from flashedge.cli import exit_codes, output
from flashedge.cli.connection import connect_ready
from flashedge.cli.solve.batch import NAME, check_batch, check_output
from flashedge.config import Config

USUAL_JOBS = 4


def score_file(
    settings: Mapping[str, Any],
    source: Path,
    target: Path | None,
    config: Config,
    *,
    jobs: int | None,
    priority: int | None,
    program: str | None,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """Score a file of solutions, continuing where an earlier call ended.

    `settings` are fields of POST /v1/score, which the same command must give again. Exits 1 if a
    line failed. Raises ConfigError, RequestError, DaemonError, EngineError, StoreError, Conflict.
    """
    from flashedge.batch.attempts import BATCH_PRIORITY
    from flashedge.batch.journal import SheetJournal
    from flashedge.batch.solutions import (
        SolutionRecord,
        digest_solutions,
        read_solutions,
        score_lines,
    )
    from flashedge.daemon import control as daemon_control

    jobs = USUAL_JOBS if jobs is None else jobs
    target = check_batch(target, jobs, example="scores.jsonl")
    records = read_solutions(source)
    check_output(source, target)
    with connect_ready(config) as client:
        settings = {"model": client.status()["pair"], **settings}
    asked = {**settings, "priority": BATCH_PRIORITY if priority is None else priority}

    async def score() -> None:
        caller = daemon_control.connect_async(config, name=NAME, program=program)
        async with caller as client:
            await score_lines(client, records, journal, asked, jobs)

    parse = SolutionRecord.from_json
    digest = digest_solutions(records)
    with SheetJournal(target, digest, settings, parse, key=lambda record: record.id) as journal:
        done = journal.records
        if retry_failed:
            journal.drop([name for name, record in done.items() if "error" in record.fields])
        try:
            asyncio.run(score())
        finally:
            done = journal.records
            if len(done) < len(records):
                output.note(f"{len(done)} of {len(records)} done; the same command resumes")
        failed = sum("error" in record.fields for record in done.values())
    if as_json:
        output.print_json({"output": str(target), "lines": len(records), "failed": failed})
    else:
        output.say(f"{len(records) - failed} of {len(records)} scored: {target}")
    if failed:
        raise typer.Exit(exit_codes.NO_RESULT)
