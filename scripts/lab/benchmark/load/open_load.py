"""Sends the programs of a load at their times, whether or not those before have ended.

The clock is the event loop's. A daemon over HTTP serves in real time (`DaemonServer`), a simulated
pair in virtual time (`virtual_load`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from flashedge import events
from flashedge.answers.extraction import extract_answer
from flashedge.client import protocol
from flashedge.client.async_client import AsyncClient
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RunInterrupted
from flashedge.events import Event
from flashedge.files.problems import FileProblem, ProblemId
from flashedge.runtime.drive.tasks import raise_first_error
from flashedge.scheduling.programs.program import Kind
from flashedge.types import Message
from scripts.lab import runs
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.timings import End, ProgramRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A program's result. Times are of the event loop's clock; None: the time of its end."""

    started_s: float | None
    first_token_s: float | None
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
            ended_s = now()
            times_s = (served.started_s, served.first_token_s, ended_s)
            since_s = [(ended_s if at is None else at) - due_s for at in times_s]
            found = {
                "end": End.FINISHED,
                **dict(zip(("wait_s", "first_token_s", "latency_s"), since_s, strict=True)),
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


BATCH_PRIORITY = 1
"""A priority above 0 means batch work."""


async def stream_chat(
    client: AsyncClient, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncGenerator[protocol.ChatPiece]:
    """Stream a reply, however long it waits in the engine. Raises DaemonError when it is cut."""
    timeout = httpx.Timeout(client.call_timeout_s, read=None)
    stream = client.stream("POST", protocol.CHAT_PATH, json=body, headers=headers, timeout=timeout)
    async with aclosing(stream) as batches:
        async for frames in batches:
            for frame in frames:
                if frame.data == protocol.DONE:
                    return
                for piece in protocol.parse_chat_frame(frame):
                    yield piece
    raise DaemonError(protocol.CUT_REPLY)


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
        text = self.problems[program.problem].text
        headers = protocol.build_headers(api_key=None, name=program.client, program=None)
        serve = self._serve_chat if program.kind is Kind.CHAT else self._serve_search
        return await serve(program, text, headers)

    async def _serve_chat(
        self, program: PlannedProgram, text: str, headers: Mapping[str, str]
    ) -> Served:
        """Stream a reply. It counts as started with its first token."""
        reply, first_s, tokens = "", None, 0
        asked = {"seed": program.seed, **self.chat}
        body = protocol.build_chat_body([Message(role="user", content=text)], self.model, asked)
        async with aclosing(stream_chat(self.client, body, headers)) as pieces:
            async for piece in pieces:
                if first_s is None and (piece.text or piece.reasoning or piece.finish):
                    first_s = asyncio.get_running_loop().time()
                reply += piece.text
                tokens = (piece.usage or {}).get("completion_tokens", tokens)
        return Served(
            started_s=first_s,
            first_token_s=first_s,
            output_tokens=tokens,
            answer=extract_answer(reply),
        )

    async def _serve_search(
        self, program: PlannedProgram, text: str, headers: Mapping[str, str]
    ) -> Served:
        """Start a run and follow its events. Its first token is seen up to 0.1 s late, since a run
        reports its progress ten times a second."""
        times: dict[str, float] = {}

        def watch(event: Event) -> None:
            match event:
                case events.RunStarted():
                    times["start"] = asyncio.get_running_loop().time()
                case events.Progress() | events.StepCompleted():
                    times.setdefault("first token", asyncio.get_running_loop().time())

        body = {**self.search, "problem": text, "seed": program.seed}
        if program.kind is Kind.BATCH:
            body["priority"] = BATCH_PRIORITY
        result = await runs.solve(self.client, body, watch, headers=headers)
        return Served(
            started_s=times.get("start"),
            first_token_s=times.get("first token"),
            output_tokens=result["usage"]["tree_tokens"],
            answer=result["answer"],
        )
