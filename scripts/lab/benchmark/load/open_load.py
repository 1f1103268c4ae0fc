"""Sends the programs of a load at their times, whatever became of those before, and keeps records.

The clock is the event loop's. On real time the server is a daemon (`daemon_server`), on virtual
time a simulated pair (`virtual_server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RunInterrupted
from flashedge.files.problems import ProblemId
from flashedge.runtime.drive.tasks import raise_first_error
from scripts.lab.benchmark.load.plan import PlannedProgram
from scripts.lab.benchmark.load.record import End, ProgramRecord


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
