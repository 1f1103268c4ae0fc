"""An engine process: what it is started with, and one that dies before it has answered once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.process import EngineProcess
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
async def test_a_process_killed_while_it_starts_is_an_error_not_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing() -> None: ...

    process = EngineProcess(OPTIONS, nothing)
    build = process._build

    def built_and_killed() -> None:
        build()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(process, "_build", built_and_killed)
    async with asyncio.timeout(120):
        with pytest.raises(EngineError, match=r"did not start.*ended"):
            await process.start()
    assert process.health().state == "failed"
    assert process.pid is None
