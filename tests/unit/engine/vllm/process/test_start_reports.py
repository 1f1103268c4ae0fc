"""The pipe from a starting process to the daemon, with a real process that is spawned."""

from __future__ import annotations

import asyncio
import multiprocessing

from flashedge.engine.vllm.inside.keys import STAGES_PIPE
from flashedge.engine.vllm.process.start_reports import receive_stages, report_starts


def send_stages() -> None:
    pipe = getattr(multiprocessing.current_process(), STAGES_PIPE)
    for stage in ("loading", "compiling"):
        pipe.send_bytes(stage.encode())


def start_process() -> multiprocessing.Process:
    context = report_starts(multiprocessing.get_context("spawn"))
    process: multiprocessing.Process = context.Process(target=send_stages)  # type: ignore[attr-defined]
    process.start()
    return process


async def test_a_spawned_process_reports_to_the_daemons_loop() -> None:
    stages: list[str] = []
    arrived = asyncio.Event()

    def receive(stage: str) -> None:
        stages.append(stage)
        arrived.set()

    with receive_stages(receive):
        process = await asyncio.to_thread(start_process)
        async with asyncio.timeout(30):
            await arrived.wait()
        await asyncio.to_thread(process.join)
    assert stages == ["loading", "compiling"]
    assert process.exitcode == 0


def test_a_process_that_nobody_listens_to_starts_as_usual() -> None:
    context = multiprocessing.get_context("spawn")
    assert report_starts(context) is context
