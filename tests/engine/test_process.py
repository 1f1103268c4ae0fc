"""The start of an engine process that dies before it answers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from flashedge.engine.vllm import compat
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.process.live_process import LiveProcess
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.errors import EngineError
from flashedge.models.registry import BUNDLED

OPTIONS = EngineOptions(
    name="generator",
    model=Path(BUNDLED) / "generator",
    dtype="float32",
    max_model_len=256,
    kv_bytes=64 << 20,
    max_num_seqs=4,
)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_process_that_is_killed_while_it_starts_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compat.prepare_environment()
    start_fork_server()

    async def do_nothing() -> None: ...

    process = EngineProcess(OPTIONS, do_nothing)
    build = LiveProcess._build

    def build_and_kill(live: LiveProcess) -> None:
        build(live)
        assert live.pid is not None
        os.kill(live.pid, signal.SIGKILL)

    monkeypatch.setattr(LiveProcess, "_build", build_and_kill)
    async with asyncio.timeout(120):
        with pytest.raises(EngineError, match=r"did not start.*ended"):
            await process.start()
    assert process.health().state == "failed"
    assert process.pid is None


@pytest.mark.asyncio(loop_scope="session")
async def test_a_start_that_is_given_up_leaves_no_process() -> None:
    """The thread that starts it can't be cancelled."""
    compat.prepare_environment()
    start_fork_server()

    async def do_nothing() -> None: ...

    before = list_processes()
    process = EngineProcess(OPTIONS, do_nothing)
    start = asyncio.create_task(process.start())
    async with asyncio.timeout(120):
        await asyncio.to_thread(wait_for_process, process)
        live = process._live
        assert live is not None
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await process.stop()
        assert live._building is not None
        await asyncio.wait({live._building})
    assert list_processes() <= before


def wait_for_process(process: EngineProcess) -> None:
    """Until it exists. It loads its model then."""
    while process._live is None or getattr(process._live._starting, "pid", None) is None:
        time.sleep(0.01)


def list_processes() -> set[int]:
    """This process's own and those of the fork server."""
    below = psutil.Process().children(recursive=True)
    return {each.pid for each in below if each.status() != psutil.STATUS_ZOMBIE}
