"""Sends the programs of a load at their times, whether or not those before have ended.

The clock is the event loop's. A daemon over HTTP serves in real time (`DaemonServer`), a simulated
pair in virtual time (`virtual_load`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

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


Serve = Callable[[PlannedProgram], Awaitable[Served]]
"""Sends a program and awaits its end. Ends it at the server when cancelled.

Raises QueueFull where it is refused, DaemonError where the server is gone, and any other
FlashEdgeError where the program fails.
"""


async def run_load(
    programs: Sequence[PlannedProgram],
    serve: Serve,
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
    now = asyncio.get_running_loop().time
    origin_s = now() - programs[0].arrived_s

    async def run_one(program: PlannedProgram) -> None:
        due_s = origin_s + program.arrived_s
        late_s = max(0.0, now() - due_s)
        found: dict[str, Any]
        try:
            served = await serve(program)
            found = {
                "end": End.FINISHED,
                "wait_s": served.started_s - due_s,
                "first_token_s": served.first_token_s - due_s,
                "latency_s": served.finished_s - due_s,
                "output_tokens": served.output_tokens,
                "answer": served.answer,
            }
        except QueueFull as refusal:
            found = {"end": End.REFUSED, "error": str(refusal)}
        except FlashEdgeError as failure:
            if isinstance(failure, DaemonError) and not isinstance(failure, RunInterrupted):
                raise
            found = {"end": End.FAILED, "error": str(failure)}
        keep(
            ProgramRecord(
                number=program.number,
                part=part,
                kind=program.kind,
                client=program.client,
                problem=problem_ids[program.problem],
                arrived_s=program.arrived_s,
                late_s=late_s,
                **found,
            )
        )

    with raise_first_error():
        async with asyncio.TaskGroup() as group:
            for program in programs:
                await asyncio.sleep(max(0.0, origin_s + program.arrived_s - now()))
                group.create_task(run_one(program))


CLIENT_HEADER = "X-FlashEdge-Client"
BATCH_PRIORITY = 1
"""A priority above 0 means batch work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonServer:
    """Serves programs over HTTP."""

    client: AsyncClient
    problems: Sequence[FileProblem]
    model: str
    """Which model chats ask for."""
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
        run, now = create_run_id(), asyncio.get_running_loop().time
        body = {
            **self.search,
            "problem": self.problems[program.problem].text,
            "seed": program.seed,
            "id": run,
            **({"priority": BATCH_PRIORITY} if program.kind is Kind.BATCH else {}),
        }
        started_s: float | None = None
        first_s: float | None = None
        result: Mapping[str, Any] | None = None
        try:
            await self.client.submit(body, headers=_name_client(program))
            async with aclosing(follow.follow(self.client, run, follow.UNATTENDED)) as pieces:
                async for event in (event async for piece in pieces for _, event in piece):
                    match event:
                        case events.RunStarted():
                            started_s = now()
                        case events.Progress() | events.StepCompleted() if first_s is None:
                            first_s = now()
                        case events.RunFinished(result=found):
                            result = found
                        case events.RunFailed():
                            raise build_run_error(event)
                        case events.RunCancelled(reason=reason):
                            raise RequestError(f"the run was cancelled: {reason}")
        except asyncio.CancelledError:
            await follow.cancel_quietly(self.client, run)
            raise
        assert result is not None, "a stream of events ends with a terminal one"
        finished_s = now()
        return Served(
            started_s=finished_s if started_s is None else started_s,
            first_token_s=finished_s if first_s is None else first_s,
            finished_s=finished_s,
            output_tokens=result["usage"]["tree_tokens"],
            answer=result["answer"],
        )


def _name_client(program: PlannedProgram) -> dict[str, str]:
    return {CLIENT_HEADER: program.client}
