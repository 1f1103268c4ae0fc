"""An engine process: what it is started with, and one that dies before it has answered once."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.config import load_config
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.process import EngineProcess
from flashedge.errors import ConfigError, EngineError
from flashedge.models.registry import BUNDLED, find_pair

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


def test_evicted_kv_spills_by_vllms_own_connector() -> None:
    """As far as vLLM's configuration: the copies themselves need a card."""
    plain = OPTIONS.args().create_engine_config()
    assert plain.kv_transfer_config is None
    config = replace(OPTIONS, spill_bytes=3 << 29).args().create_engine_config()
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector == "OffloadingConnector"
    assert config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] == 3 << 29


def test_a_cpu_has_nowhere_to_spill_to() -> None:
    config = load_config({"scheduling_spill_bytes": "1GiB"})
    with pytest.raises(ConfigError, match="host memory") as told:
        VllmPair(find_pair("bundled", config), config)
    assert told.value.param == "scheduling_spill_bytes"
