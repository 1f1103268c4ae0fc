"""Searches on simulated engines run on virtual time."""

from __future__ import annotations

import pytest

from scripts.lab.sim.clock import VirtualTimePolicy


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()
