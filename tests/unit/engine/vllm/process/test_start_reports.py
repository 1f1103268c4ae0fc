"""What a starting process gets from the daemon and sends to it, with real processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing import sharedctypes

from flashedge.engine.vllm.inside.keys import STAGES_PIPE, STEP_RECORD
from flashedge.engine.vllm.inside.step_record import RECORD_BYTES, StepRecord, get_step_record
from flashedge.engine.vllm.process.start_reports import carry, receive_stages, report_starts


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


def die_in_step() -> None:
    get_step_record().begin_step(["gen-1-0a1b2c3d"])
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_record_outlives_its_process() -> None:
    memory = sharedctypes.RawArray("B", RECORD_BYTES)
    with carry(**{STEP_RECORD: memory}):
        context = report_starts(multiprocessing.get_context("spawn"))
        process = context.Process(target=die_in_step)  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert StepRecord(memory).holds("gen-1")
