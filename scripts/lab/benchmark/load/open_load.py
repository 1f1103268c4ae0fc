"""Sends the programs of a load at their times, whether or not those before have ended.

The clock is the event loop's. On real time the server is a daemon over HTTP (`DaemonServer`), on
virtual time a simulated pair (`virtual_load`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from flashedge import events
from flashedge.answers.extraction import extract_answer
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import build_run_error
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError, RunInterrupted
from flashedge.files.problems import FileProblem, ProblemId
from flashedge.runtime.drive.tasks import raise_first_error
from flashedge.runtime.run import create_run_id
from flashedge.scheduling.programs.program import Kind
from flashedge.types import Message
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.timings import End, ProgramRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A program's result, with times of the event loop's clock."""

    started_s: float
    first_token_s: float
    finished_s: float
    output_tokens: int
    answer: str | None = None


class ProgramServer(Protocol):
    """Serves programs, one call each."""

    async def serve(self, program: PlannedProgram) -> Served:
        """Send the program and await its end. Ends it at the server when cancelled.

        Raises QueueFull where it is refused, DaemonError where the server is gone, and any other
        FlashEdgeError where the program fails.
        """
        ...


async def run_load(
    programs: Sequence[PlannedProgram],
    server: ProgramServer,
    keep: Callable[[ProgramRecord], None],
    *,
    problem_ids: Sequence[ProblemId],
    part: int = 0,
) -> None:
    """Run the programs, the first of them at once, and give each one's record to `keep`.

    problem_ids: by the index of a problem. part: see `ProgramRecord`. Raises DaemonError when the
    server is gone. Then, and when this is cancelled, open programs are ended and get no record.
    """
    if not programs:
        return
    loop = asyncio.get_running_loop()
    origin_s = loop.time() - programs[0].arrived_s

    async def run_one(program: PlannedProgram) -> None:
        due_s = origin_s + program.arrived_s
        late_s = max(0.0, loop.time() - due_s)
        end, error, served = End.FINISHED, None, None
        try:
            served = await server.serve(program)
        except QueueFull as refusal:
            end, error = End.REFUSED, str(refusal)
        except DaemonError as lost:
            if not isinstance(lost, RunInterrupted):
                raise
            end, error = End.FAILED, str(lost)
        except FlashEdgeError as failure:
            end, error = End.FAILED, str(failure)
        keep(
            ProgramRecord(
                number=program.number,
                part=part,
                kind=program.kind,
                client=program.client,
                problem=problem_ids[program.problem],
                arrived_s=program.arrived_s,
                end=end,
                late_s=late_s,
                wait_s=None if served is None else served.started_s - due_s,
                first_token_s=None if served is None else served.first_token_s - due_s,
                latency_s=None if served is None else served.finished_s - due_s,
                output_tokens=None if served is None else served.output_tokens,
                answer=None if served is None else served.answer,
                error=error,
            )
        )

    with raise_first_error():
        async with asyncio.TaskGroup() as group:
            for program in programs:
                await asyncio.sleep(max(0.0, origin_s + program.arrived_s - loop.time()))
                group.create_task(run_one(program))


CLIENT_HEADER = "X-FlashEdge-Client"
BATCH_PRIORITY = 1
"""Of batch work: any above 0."""


@dataclass(slots=True)
class _Seen:
    """What is seen of a run's events."""

    started_s: float | None = None
    first_token_s: float | None = None
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonServer:
    """Implements `ProgramServer`."""

    client: AsyncClient

    problems: Sequence[FileProblem]

    model: str
    """Name of the model that chats ask for."""

    search: Mapping[str, Any]
    """Fields of a search's request, without problem and seed."""

    chat: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a chat's request."""

    async def serve(self, program: PlannedProgram) -> Served:
        if program.kind is Kind.CHAT:
            return await self._serve_chat(program)
        return await self._serve_search(program)

    async def _serve_chat(self, program: PlannedProgram) -> Served:
        """Stream a reply. It counts as started with its first token."""
        now = asyncio.get_running_loop().time
        text: list[str] = []
        first_s: float | None = None
        tokens = 0
        pieces = self.client.chat(
            [Message(role="user", content=self.problems[program.problem].text)],
            model=self.model,
            headers=_name_client(program),
            seed=program.seed,
            **self.chat,
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if first_s is None and (piece.text or piece.reasoning or piece.finish):
                    first_s = now()
                text.append(piece.text)
                tokens = (piece.usage or {}).get("completion_tokens", tokens)
        finished_s = now()
        first_s = finished_s if first_s is None else first_s
        return Served(
            started_s=first_s,
            first_token_s=first_s,
            finished_s=finished_s,
            output_tokens=tokens,
            answer=extract_answer("".join(text)),
        )

    async def _serve_search(self, program: PlannedProgram) -> Served:
        """Start a run and follow its events. Its first token is seen up to 0.1 s late, since a run
        reports its progress ten times a second."""
        run = create_run_id()
        body = {
            **self.search,
            "problem": self.problems[program.problem].text,
            "seed": program.seed,
            "id": run,
            **({"priority": BATCH_PRIORITY} if program.kind is Kind.BATCH else {}),
        }
        seen = _Seen()
        try:
            await self.client.submit(body, headers=_name_client(program))
            async with aclosing(follow.follow(self.client, run, follow.UNATTENDED)) as pieces:
                async for piece in pieces:
                    for _, event in piece:
                        _note(event, seen)
        except asyncio.CancelledError:
            await follow.cancel_quietly(self.client, run)
            raise
        if seen.result is None:
            raise DaemonError(f"run {run} has no terminal event")
        finished_s = asyncio.get_running_loop().time()
        started_s = finished_s if seen.started_s is None else seen.started_s
        return Served(
            started_s=started_s,
            first_token_s=finished_s if seen.first_token_s is None else seen.first_token_s,
            finished_s=finished_s,
            output_tokens=seen.result["usage"]["tree_tokens"],
            answer=seen.result["answer"],
        )


def _note(event: events.Event, seen: _Seen) -> None:
    now_s = asyncio.get_running_loop().time()
    match event:
        case events.RunStarted():
            seen.started_s = now_s
        case events.Progress() | events.StepCompleted() if seen.first_token_s is None:
            seen.first_token_s = now_s
        case events.RunFinished(result=result):
            seen.result = result
        case events.RunFailed():
            raise build_run_error(event)
        case events.RunCancelled(reason=reason):
            raise RequestError(f"the run was cancelled: {reason}")
        case _:
            pass


def _name_client(program: PlannedProgram) -> dict[str, str]:
    return {CLIENT_HEADER: program.client}
