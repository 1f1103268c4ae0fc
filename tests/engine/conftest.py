"""The bundled pair on real vLLM engines, started once for the whole session.

Engines belong to one event loop, so all tests of this folder run on the session's loop.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import pytest_asyncio

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.http_requests import PlainRequests
from flashedge.engine.vllm.engine import VllmEngine
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.models.registry import find_pair
from flashedge.models.specs import ModelSpec
from flashedge.runtime.drive.engines import Engines
from flashedge.types import Problem
from scripts.bench.daemon import Daemon, start_daemon
from scripts.lab.scheduler_pair import SchedulerPair
from tests.support.guarded_pages import KV_MEMORY
from tests.support.tiny_checkpoints import POSITIONS
from tests.support.tool_caller import make_pairs

T = TypeVar("T", bound=VllmPair | VllmEngine)
PROBLEM = (
    "Tom has 57 cards. Day 1: drops 44. Day 2: doubles. Day 3: wins 24. "
    "How many cards has Tom after day 3?"
)

FROM_SHELL = ("FLASHEDGE_FEATURES",)
"""Set to async_scheduling=on, it runs the tests of this folder on an asynchronous generator, set to
second_runner=on on vLLM's second model runner (which needs TRITON_INTERPRET=1 and
PYTHONPATH=tests/support/interpreted)."""

GROUPS = {"pair": "pair", "mapped_pair": "pair", "served": "served"}
"""Fixture -> the group of tests that share it, in one process. Other modules are groups each."""

START_BYTES = {"generator": 24 << 20, "verifier": 72 << 20}
"""KV memory of the engines of `mapped_pair` when they start."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)
            names = getattr(item, "fixturenames", ())
            group = next((GROUPS[name] for name in GROUPS if name in names), item.path.stem)
            item.add_marker(pytest.mark.xdist_group(group))
            if pytest_asyncio.is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def build_tiny_options(name: str, folder: Path, **more: Any) -> EngineOptions:
    """Options of an engine with one of the `tiny_checkpoints`."""
    sizes: dict[str, Any] = {"kv_bytes": 8 << 20, "max_num_seqs": 16, "max_model_len": POSITIONS}
    return EngineOptions(name=name, model=folder, dtype="float32", **sizes | more)


@asynccontextmanager
async def started(engine: T) -> AsyncIterator[T]:
    """engine: a pair, or one engine."""
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def make_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    asked = {name: os.environ[name] for name in FROM_SHELL if name in os.environ}
    return {"FLASHEDGE_HOME": str(tmp_path_factory.mktemp("home")), **asked}


@pytest.fixture(scope="session")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    config = load_config(environ=make_environ(tmp_path_factory))
    async with started(SchedulerPair(find_pair("bundled", config), config)) as engines:
        yield engines


@pytest_asyncio.fixture(loop_scope="session")
async def engines(pair: VllmPair) -> AsyncIterator[Engines]:
    """The bundled pair with a grader, as a driver works with it."""
    grader = MathGrader()
    yield Engines(generator=pair.generator, verifier=pair.verifier, grader=grader)
    await grader.close()


@pytest.fixture
def stock(pair: VllmPair, engines: Engines) -> Engines:
    """The naive twins of `engines`, which score each of several equal paths."""
    twins = replace(engines, generator=pair.stock_generator, verifier=pair.stock_verifier)
    return twins.switch(score_once=False)


class MappedPair(SchedulerPair):
    """Engines whose KV memory is mapped in granules of half a MiB, as on a card.

    A step that touches memory that is not mapped ends the engine's process.
    """

    def _build_options(self, name: str, spec: ModelSpec, path: Path, *sizes: Any) -> EngineOptions:
        options = super()._build_options(name, spec, path, *sizes)
        extra = {**options.extra, "worker_extension_cls": KV_MEMORY}
        return replace(options, kv_start_bytes=START_BYTES[name], extra=extra)


@pytest.fixture(scope="session")
async def mapped_pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    """Each engine can grow to the memory that both have together."""
    sizes = tuple(START_BYTES.values())
    config = load_config({"kv_bytes": sizes}, environ=make_environ(tmp_path_factory))
    async with started(MappedPair(find_pair("bundled", config), config)) as engines:
        yield engines


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It serves the bundled pair and, once they are asked for, two with tiny generators."""
    folder = tmp_path_factory.mktemp("config")
    (folder / "models.toml").write_text(make_pairs(folder), encoding="utf-8")
    with start_daemon(config_dir=folder, loaded_pairs=3) as running:
        yield running


@pytest.fixture(scope="session")
def client(served: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=120) as opened:
        yield opened


@asynccontextmanager
async def open_handlers(pair: VllmPair, plain: PlainRequests) -> AsyncIterator[httpx.AsyncClient]:
    """A client of vLLM's handlers over the pair, without a daemon."""
    app: Any = await pair.serve_protocols(plain)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def handlers(pair: VllmPair) -> AsyncIterator[httpx.AsyncClient]:
    async with open_handlers(pair, PlainRequests()) as opened:
        yield opened


@pytest.fixture
def generator(pair: VllmPair) -> VllmGenerator:
    return pair.generator


@pytest.fixture
def verifier(pair: VllmPair) -> VllmVerifier:
    return pair.verifier


@pytest.fixture
def problem() -> Problem:
    return Problem.from_text(PROBLEM)
