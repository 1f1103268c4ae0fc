"""Searches on simulated engines run on virtual time."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from flashedge.config import Config, load_config
from flashedge.runtime.records.store import RunStore
from scripts.lab.sim.clock import VirtualTimePolicy
from tests.support.service_rig import Rig, Serve


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(environ={"FLASHEDGE_HOME": str(tmp_path)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "state" / "runs.sqlite")
    yield opened
    opened.close()


@pytest_asyncio.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts a service with the given settings, which stops after the test."""
    started: list[Rig] = []

    async def start(**settings: object) -> Rig:
        rig = Rig(tmp_path, **settings)  # type: ignore[arg-type]
        started.append(rig)
        await rig.service.start()
        return rig

    yield start
    for rig in started:
        await rig.service.stop()


@pytest_asyncio.fixture
async def rig(serve: Serve) -> Rig:
    return await serve()
