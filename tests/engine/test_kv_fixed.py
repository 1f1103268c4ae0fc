"""Engines that start as on a card: by a spawn, with KV memory that is fixed."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from flashedge.engine.base import ScoreRequest
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.prm import find_family
from flashedge.engine.vllm.process import start
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.types import Problem
from tests.engine.conftest import build_tiny_options
from tests.support.commands import wait_for
from tests.support.engine_rig import ask_apart, drawn, generate_all, settle
from tests.support.tiny_checkpoints import make_checkpoint

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnedEngines:
    generator: VllmGenerator
    verifier: VllmVerifier
    """A model whose class only our plugin registers, in each process anew."""
    log: list[str]
    """What the daemon logged while the engines started."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def spawned(
    pair: VllmPair, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SpawnedEngines]:
    options = replace(pair.generator.options, name="spawned", kv_fixed="a test", kv_bytes=48 * MIB)
    generator = VllmGenerator(options, pair.generator.codec)
    folder = make_checkpoint("skywork", tmp_path_factory.mktemp("prm") / "skywork")
    options = build_tiny_options("plugin", folder, kv_fixed="a test")
    verifier = VllmVerifier(options, find_family("skywork")(folder, {}))

    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("flashedge.engine.vllm.process.restarts")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "choose_start_method", lambda: "spawn")
        await asyncio.gather(generator.start(), verifier.start())
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    yield SpawnedEngines(generator=generator, verifier=verifier, log=log)
    await asyncio.gather(generator.stop(), verifier.stop())


async def test_a_spawned_engine_with_fixed_memory_draws_the_same_tokens(
    spawned: SpawnedEngines, generator: VllmGenerator, problem: Problem
) -> None:
    fixed = spawned.generator
    requests = ask_apart(fixed, problem, 8, 40, length=200, max_tokens=40)
    expected = drawn(await generate_all(generator, requests))
    assert drawn(await generate_all(fixed, requests)) == expected
    await fixed.budget(24 * MIB)
    view = await fixed.view()
    assert view.quota_blocks * view.block_bytes <= 24 * MIB
    assert drawn(await generate_all(fixed, requests)) == expected
    await fixed.offload(keep=True)
    await fixed.restore()
    assert drawn(await generate_all(fixed, requests)) == expected
    await settle(fixed)


async def test_a_spawned_process_loads_our_plugin(
    spawned: SpawnedEngines, problem: Problem
) -> None:
    request = ScoreRequest(problem=problem, steps=("57 - 44 = 13.\n\n", "13 * 2 = 26.\n\n"))
    scores = (await spawned.verifier.score(request)).scores
    assert len(scores) == 2
    assert all(0 < score < 1 for score in scores)


async def test_the_daemon_says_what_a_starting_engine_does(spawned: SpawnedEngines) -> None:
    for name in ("spawned", "plugin"):
        assert [line for line in spawned.log if line.startswith(name) and "ready" not in line] == [
            f"{name}: starting its process",
            f"{name}: loading the weights",
            f"{name}: making the scheduler",
        ]
    assert spawned.generator.health().stage is None


async def test_a_spawned_engine_ends_with_its_daemon(spawned: SpawnedEngines) -> None:
    """The daemon's death closes its end of a pipe, which no other process holds open."""
    process = spawned.generator.process
    process._live.note_end()  # nobody restarts the engine
    child = process.get_llm().engine_core.resources.engine_manager.processes[0]
    _, to_child = child._popen.finalizer._args
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, to_child, inheritable=False)  # closes the pipe, as the daemon's end would
    os.close(nothing)
    # vLLM's monitor may reap the process first; for a moment `join` then knows no exit code.
    await asyncio.to_thread(wait_for, lambda: child.exitcode is not None, 60)
    assert child.exitcode == -signal.SIGKILL
