"""Scores a file of solutions: several lines at a time, one record each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.batch.journal import SheetJournal
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.errors import ConfigError, RequestError
from flashedge.files.problems import ProblemId, read_objects
from flashedge.runtime.drive.tasks import run_workers

TEXTS = ("solution", "steps")
_HINT = 'each line is an object like {"problem": "What is 12 + 7?", "solution": "It is 19."}'


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


async def score_lines(
    client: AsyncClient,
    records: Sequence[SolutionRecord],
    journal: SheetJournal[SolutionRecord],
    settings: Mapping[str, Any],
    jobs: int,
) -> None:
    """Score the lines that have no record yet, `jobs` at a time. A line whose texts the daemon
    refuses gets an error for its scores. settings: fields of POST /v1/score. Raises RequestError
    where the daemon refuses those, DaemonError, EngineError, StoreError."""

    async def score(record: SolutionRecord) -> None:
        journal.append(await _score_record(client, record, settings))

    await run_workers(jobs, score, [r for r in records if r.id not in journal.records])


async def _score_record(
    client: AsyncClient, record: SolutionRecord, settings: Mapping[str, Any]
) -> SolutionRecord:
    fields = record.fields
    texts = {name: fields[name] for name in ("problem", *TEXTS) if fields.get(name) is not None}
    try:
        found = await follow.retry(lambda: client.score({**settings, **texts}), follow.UNATTENDED)
    except RequestError as error:
        if not (error.param or "").startswith(("problem", *TEXTS)):
            raise
        scored: dict[str, Any] = {"error": {"code": error.code, "message": str(error)}}
    else:
        left_out = ("index", "object")
        scored = {
            "scores": [
                {name: value for name, value in one.items() if name not in left_out}
                for one in found["data"]
            ]
        }
    return SolutionRecord(id=record.id, fields={**fields, **scored})
