"""Engine processes: one that dies before it answers, and what two that start at once share."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
import typing
from pathlib import Path
from typing import Any

import psutil
import pytest

from flashedge.config import load_config
from flashedge.engine.vllm import compat
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.process.live_process import LiveProcess
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.engine.vllm.process.start import start_fork_server
from flashedge.errors import EngineError
from flashedge.models.registry import BUNDLED, find_pair

OPTIONS = EngineOptions(
    name="generator",
    model=BUNDLED / "generator",
    dtype="float32",
    max_model_len=256,
    kv_bytes=64 << 20,
    max_num_seqs=4,
)


@pytest.fixture
def process() -> EngineProcess:
    compat.prepare_environment()
    start_fork_server()

    async def do_nothing() -> None: ...

    return EngineProcess(OPTIONS, do_nothing)


async def test_a_process_that_is_killed_while_it_starts_raises(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = LiveProcess._build

    def build_and_kill(live: LiveProcess) -> None:
        build(live)
        os.kill(live.pid, signal.SIGKILL)

    monkeypatch.setattr(LiveProcess, "_build", build_and_kill)
    async with asyncio.timeout(120):
        with pytest.raises(EngineError, match=r"did not start.*ended"):
            await process.start()
    assert process.health().state == "failed"
    assert process.pid is None


async def test_a_start_that_is_given_up_leaves_no_process(process: EngineProcess) -> None:
    """The thread that starts it can't be cancelled."""
    before = list_processes()
    start = asyncio.create_task(process.start())
    async with asyncio.timeout(120):
        await asyncio.to_thread(wait_for_process, process)
        live = process._live
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await process.stop()
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


DECODERS, APART_S, SLOWER_S = 12, 0.005, 0.0005


def decode_in_threads(home: str) -> None:
    """Make decoders in one thread after the other and use each at once, in a fresh process.

    The first one takes 60 ms, so the others are made meanwhile.
    """
    from msgspec.msgpack import encode
    from vllm.v1.engine import EngineCoreOutputs, UtilityOutput
    from vllm.v1.serial_utils import MsgpackDecoder

    config = load_config(environ={"FLASHEDGE_HOME": home})
    VllmPair(find_pair("bundled", config), config)._build()  # as before the engines start
    evaluate = typing._eval_type  # type: ignore[attr-defined]

    def evaluate_slowly(*args: Any) -> Any:
        time.sleep(SLOWER_S)
        return evaluate(*args)

    typing._eval_type = evaluate_slowly  # type: ignore[attr-defined]
    message = encode(EngineCoreOutputs(utility_output=UtilityOutput(call_id=7)))
    decoded: list[int] = []

    def decode() -> None:
        decoded.append(MsgpackDecoder(EngineCoreOutputs).decode(message).utility_output.call_id)

    threads = [threading.Thread(target=decode) for _ in range(DECODERS)]
    for thread in threads:
        thread.start()
        time.sleep(APART_S)
    for thread in threads:
        thread.join()
    assert decoded == [7] * DECODERS


def test_decoders_made_at_once_in_two_threads_do_not_end_the_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")  # as for engines: it has imported vLLM
    process = context.Process(target=decode_in_threads, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == 0
