"""Searches on simulated engines run on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from scripts.lab.sim.clock import VirtualTimePolicy
from tests.support.service_rig import Rig


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A service that has started, and stops after the test."""
    made = Rig(tmp_path)
    await made.service.start()
    yield made
    await made.service.stop()
