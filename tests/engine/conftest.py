"""The bundled pair on real vLLM engines, started once for the whole session.

Engines belong to one event loop: test modules that use them run on the session's loop
(`pytestmark = pytest.mark.asyncio(loop_scope="session")`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.verifier import VllmVerifier
from flashedge.models.registry import find_pair
from flashedge.models.specs import ModelSpec
from flashedge.runtime.drive.engines import Engines
from flashedge.types import Problem
from scripts.bench.daemon import Daemon, start_daemon
from tests.support.tool_caller import ENTRY, make_tool_caller

PROBLEM = (
    "Tom has 57 cards. Day 1: drops 44. Day 2: doubles. Day 3: wins 24. "
    "How many cards has Tom after day 3?"
)

FROM_SHELL = ("FLASHEDGE_FEATURES",)
"""Set to async_scheduling=on, it runs the tests of this folder on an asynchronous generator, set to
second_runner=on on vLLM's second model runner (which needs TRITON_INTERPRET=1 and
PYTHONPATH=tests/support/interpreted)."""

START_BYTES = {"generator": 24 << 20, "verifier": 72 << 20}
"""KV memory of the engines of `mapped_pair` when they start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.xdist_group("engine"))  # one process starts the engines


def make_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    asked = {name: os.environ[name] for name in FROM_SHELL if name in os.environ}
    return {"FLASHEDGE_HOME": str(tmp_path_factory.mktemp("home")), **asked}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    config = load_config(environ=make_environ(tmp_path_factory))
    engines = VllmPair(find_pair("bundled", config), config)
    await engines.start()
    yield engines
    await engines.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def engines(pair: VllmPair) -> AsyncIterator[Engines]:
    """The bundled pair with a grader, as a driver works with it."""
    grader = MathGrader()
    yield Engines(generator=pair.generator, verifier=pair.verifier, grader=grader)
    await grader.close()


class MappedPair(VllmPair):
    """Engines whose KV memory is mapped in granules of half a MiB, as on a card.

    A step that touches memory that is not mapped ends the engine's process.
    """

    def _build_options(self, name: str, spec: ModelSpec, path: Path, *sizes: Any) -> EngineOptions:
        options = super()._build_options(name, spec, path, *sizes)
        return replace(options, kv_start_bytes=START_BYTES[name], guarded=1 << 19)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mapped_pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    """Each engine can grow to the memory that both have together."""
    sizes = tuple(START_BYTES.values())
    config = load_config({"kv_bytes": sizes}, environ=make_environ(tmp_path_factory))
    engines = MappedPair(find_pair("bundled", config), config)
    await engines.start()
    yield engines
    await engines.stop()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It serves the bundled pair and, once it is asked for, a pair of a tiny local checkpoint."""
    folder = tmp_path_factory.mktemp("config")
    entry = ENTRY.format(folder=make_tool_caller(folder / "tool-caller"))
    (folder / "models.toml").write_text(entry, encoding="utf-8")
    with start_daemon(config_dir=folder, loaded_pairs=2) as running:
        yield running


@pytest.fixture
def generator(pair: VllmPair) -> VllmGenerator:
    return pair.generator


@pytest.fixture
def verifier(pair: VllmPair) -> VllmVerifier:
    return pair.verifier


@pytest.fixture
def problem() -> Problem:
    return Problem.from_text(PROBLEM)
