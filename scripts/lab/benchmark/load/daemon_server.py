"""Serves a load's programs on a running daemon, over HTTP: chats as streams, searches as runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from flashedge import events
from flashedge.answers.extraction import extract_answer
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import build_run_error
from flashedge.errors import DaemonError, RequestError
from flashedge.files.problems import FileProblem
from flashedge.runtime.run import create_run_id
from flashedge.scheduling.programs.program import Kind
from flashedge.types import Message
from scripts.lab.benchmark.load.open_load import Served
from scripts.lab.benchmark.load.plan import PlannedProgram

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
        """See `ProgramServer`."""
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
