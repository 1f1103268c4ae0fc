"""`score`: let a pair's verifier score solutions, or with `--input` a file of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.cli.solve import command
from flashedge.cli.solve.batch import NAME, check_files, check_unused, fill
from flashedge.config import Config, load_config
from flashedge.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from flashedge.client.async_client import AsyncClient
    from flashedge.files.problems import ProblemId

EPILOG = """\
[bold]Examples[/]
  flashedge score --file problem.txt "24+20=44." "24+20=34."
  flashedge score --file problem.txt < solution.txt
  flashedge score --input solutions.jsonl --output scores.jsonl
"""

USUAL_JOBS = 4
"""Lines in flight. Chosen by hand: with one the verifier idles between two requests; with many, a
chat's own scores wait behind them."""
_TEXTS = ("solution", "steps")
_HINT = 'each line is an object like {"problem": "What is 12 + 7?", "solution": "It is 19."}'


def score(
    problem: command.Problem = None,
    solutions: Annotated[
        list[str] | None,
        Argument(metavar="SOLUTION", help="Solutions. Without one, standard input is read as one."),
    ] = None,
    file: command.ProblemFile = None,
    pair: command.Pair = None,
    aggregate: Annotated[
        str | None,
        Option(
            metavar="HOW",
            help="How step scores become a path's score: last, min, prod, mean.",
            show_default="last",
        ),
    ] = None,
    deterministic: Annotated[
        bool | None,
        Option(
            "--deterministic/--no-deterministic",
            help="Give the same scores, to the bit, no matter what else runs.",
            show_default="the setting deterministic_searches",
        ),
    ] = None,
    priority: command.Priority = None,
    program: command.Program = None,
    source: Annotated[
        Path | None,
        command.batch_option(
            "--input",
            metavar="FILE",
            help="Score many: JSON lines with the keys problem, and solution or steps.",
        ),
    ] = None,
    target: command.Output = None,
    jobs: Annotated[
        int | None,
        command.batch_option(metavar="N", help="Lines in flight.", show_default=str(USUAL_JOBS)),
    ] = None,
    retry_failed: Annotated[
        bool,
        command.batch_option("--retry-failed", help="Score the failed lines of --output again."),
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print the API's answer as JSON.")] = False,
) -> None:
    """Score each step of a solution, and the whole of it, with the pair's verifier.

    A solution is split into steps after its blank lines, as in a search. A verifier that judges
    whole answers gives one score.
    """
    given = {"model": pair, "aggregate": aggregate, "deterministic": deterministic}
    settings = {name: value for name, value in given.items() if value is not None}
    config = load_config({"pair": pair})
    if source is not None:
        if problem is not None or file is not None:
            raise RequestError("give either --input or one problem", param="input")
        score_file(
            settings,
            source,
            target,
            config,
            jobs=USUAL_JOBS if jobs is None else jobs,
            priority=priority,
            program=program,
            retry_failed=retry_failed,
            as_json=as_json,
        )
        return
    check_unused(output=target, jobs=jobs, retry_failed=retry_failed)
    texts = list(solutions or ())
    if file is not None:  # so the first argument is a solution
        texts = texts if problem is None else [problem, *texts]
        problem = None
    elif problem is None:
        raise RequestError(
            "there is no problem",
            hint="flashedge score PROBLEM SOLUTION, or flashedge score --file FILE SOLUTION",
            param="problem",
        )
    problem = command.read_problem(problem, file)
    if not texts and sys.stdin.isatty():
        raise RequestError(
            "there is no solution",
            hint="flashedge score PROBLEM SOLUTION, or flashedge score PROBLEM < FILE",
            param="solution",
        )
    texts = texts or [command.read_text(None)]
    solution = texts[0] if len(texts) == 1 else texts
    body: dict[str, Any] = {"problem": problem, "solution": solution, **settings}
    if priority is not None:
        body["priority"] = priority
    with connect_ready(config, program=program) as client:
        found = client.score(body)
    if as_json:
        output.print_json(found)
    else:
        output.print_lines(("solution", "step", "score", "text"), _list_rows(found), "no score")


def _list_rows(found: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    for number, solution in enumerate(found["data"], start=1):
        scored = zip(solution["steps"], solution["step_scores"], strict=True)
        for step, (text, score) in enumerate(scored, start=1):
            yield number, step, f"{score:.4f}", text.strip()
        yield number, found["aggregate"], f"{solution['score']:.4f}", ""


def score_file(
    settings: Mapping[str, Any],
    source: Path,
    target: Path | None,
    config: Config,
    *,
    jobs: int,
    priority: int | None,
    program: str | None,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """Score a file of solutions, continuing where an earlier call ended. Exits 1 if a line failed.

    settings: fields of POST /v1/score, which the same command must give again. Raises ConfigError,
    RequestError, DaemonError, EngineError, StoreError, Conflict.
    """
    from flashedge.batch.attempts import BATCH_PRIORITY
    from flashedge.batch.journal import SheetJournal
    from flashedge.daemon import control as daemon_control
    from flashedge.runtime.drive.tasks import run_workers

    target = check_files(source, target, jobs, example="scores.jsonl")
    records = read_solutions(source)
    with connect_ready(config) as client:
        settings = {"model": client.status()["pair"], **settings}
    asked = {**settings, "priority": BATCH_PRIORITY if priority is None else priority}

    async def work() -> None:
        async with daemon_control.connect_async(config, name=NAME, program=program) as client:

            async def score_one(record: SolutionRecord) -> None:
                journal.append(await _score_record(client, record, asked))

            left = [record for record in records if record.id not in journal.records]
            await run_workers(jobs, score_one, left)

    items = [record.to_json() for record in records]
    with SheetJournal(target, items, settings, SolutionRecord) as journal:
        fill(journal, len(records), work, retry_failed=retry_failed)
        failed = len(journal.failed)
    if as_json:
        output.print_json({"output": str(target), "lines": len(records), "failed": failed})
    else:
        output.say(f"{len(records) - failed} of {len(records)} scored: {target}")
    if failed:
        raise typer.Exit(output.NO_RESULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionRecord:
    """A line of the input, and of the output once it is scored."""

    id: ProblemId
    """Its id in the file, or else its line number."""
    fields: Mapping[str, Any]
    """The whole line: problem, solution or steps, and others; then the scores."""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **self.fields}

    @property
    def error(self) -> Mapping[str, str] | None:
        return self.fields.get("error")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SolutionRecord:
        return cls(id=data["id"], fields=data)


def read_solutions(path: Path) -> tuple[SolutionRecord, ...]:
    """The lines of a file. Raises ConfigError naming the line that is wrong."""
    from flashedge.files.problems import read_objects

    found: dict[ProblemId, SolutionRecord] = {}
    for number, fields in read_objects(path, _HINT):
        name = fields.get("id", number)
        wrong = None
        if not isinstance(name, str | int) or isinstance(name, bool):
            wrong = "id is neither a text nor an integer"
        elif name in found:
            wrong = f"another line has the id {name!r}"
        elif not isinstance(fields.get("problem"), str):
            wrong = "problem is missing or is not a text"
        elif (fields.get("solution") is None) == (fields.get("steps") is None):
            wrong = "give either solution or steps"
        if wrong is not None:
            raise ConfigError(f"{path}, line {number}: {wrong}", hint=_HINT, param="input")
        found[name] = SolutionRecord(id=name, fields=fields)
    return tuple(found.values())


async def _score_record(
    client: AsyncClient, record: SolutionRecord, settings: Mapping[str, Any]
) -> SolutionRecord:
    """The record with its scores, or with an error where the daemon refuses its texts.

    settings: fields of POST /v1/score. Raises RequestError where the daemon refuses the settings.
    """
    from flashedge.client import follow

    fields = {name: value for name, value in record.fields.items() if name != "error"}
    texts = {name: fields[name] for name in ("problem", *_TEXTS) if fields.get(name) is not None}
    try:
        found = await follow.retry(lambda: client.score({**settings, **texts}), follow.UNATTENDED)
    except RequestError as error:
        if not (error.param or "").startswith(("problem", *_TEXTS)):
            raise
        scored: dict[str, Any] = {"error": {"code": error.code, "message": str(error)}}
    else:
        left_out = ("index", "object")
        scores = [{k: v for k, v in one.items() if k not in left_out} for one in found["data"]]
        scored = {"scores": scores}
    return SolutionRecord(id=record.id, fields={**fields, **scored})
