"""The random steps of tests/engine/test_kv_memory.py, on simulated engines."""

from dataclasses import replace

import pytest

from scripts.lab.sim.clock import run_virtual
from tests.support.kv_machine import Machine, walk
from tests.support.runtime_rig import PROBLEM, ROOM, TINY, sim_engines


@pytest.mark.parametrize("seed", [1, 3, 6])  # those that preempt
def test_random_steps_leave_nothing(seed: int) -> None:
    async def main() -> None:
        config = replace(ROOM, kv_bytes=8192 * TINY.kv_bytes_per_token, max_model_len=1024)
        engines = sim_engines(config=config)
        machine = Machine(engines.generator, engines.verifier, PROBLEM, seed)
        await walk(machine, 500)
        assert machine.cancelled > 0

    run_virtual(main())
