"""What waits in these tests waits in virtual time."""

import pytest

from scripts.lab.sim.clock import VirtualTimePolicy


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()
