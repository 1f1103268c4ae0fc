"""The real Service over simulated engines on virtual time, and a start that can be told to fail."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashedge.answers.grouping import WordGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import load_config
from flashedge.engine.base import Health
from flashedge.engine.http_requests import PlainRequests
from flashedge.engine.self_test_turns import Turns
from flashedge.events import Event
from flashedge.models.registry import find_pair
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.run import ArchivedRun, Run
from flashedge.runtime.served_pair import ServedPair
from flashedge.runtime.service import Service
from scripts.lab.sim.pair import Faults
from tests.support.fake_protocols import FakeProtocols
from tests.support.runtime_rig import BEAM, CONFIG, assert_nothing_left, both, sim_engines

SLOW = replace(BEAM, n=16, max_step_tokens=4)  # many short levels
SHAPE = {"window": 32, "group": 4, "prefill_windows": 4}
SELF_TEST = {
    "batch_invariant": True,
    "invariant_tokens": 4096,
    "replay_shape": SHAPE,
    "score_shape": SHAPE,
    "fingerprint": {"vllm": "simulated", "verifier": {"digest": "0"}},
}
SelfTest = Callable[[Turns], Awaitable[dict[str, Any]]]


class SimPair:
    """runtime.served_pair.EnginePair. The twins are the engines; `error` fails the start."""

    def __init__(
        self,
        generator: Any,
        verifier: Any,
        *,
        start_s: float = 1.0,
        error: Exception | None = None,
        self_test: SelfTest | None = None,
        protocols: type[FakeProtocols] = FakeProtocols,
    ) -> None:
        self.generator = self.stock_generator = generator
        self.verifier = self.stock_verifier = verifier
        self._start_s, self._error = start_s, error
        self._self_test, self._protocols = self_test, protocols
        self.stopped = False

    async def start(self) -> None:
        await asyncio.sleep(self._start_s)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        self.stopped = True

    def health(self) -> tuple[Health, Health]:
        return self.generator.health(), self.verifier.health()

    async def self_test(self, turns: Turns) -> dict[str, Any]:
        return SELF_TEST if self._self_test is None else await self._self_test(turns)

    async def serve_protocols(self, plain: PlainRequests) -> FakeProtocols:
        return self._protocols(plain)


class Rig:
    """A service, its parts, and ways to look at them."""

    def __init__(
        self,
        home: Path,
        *,
        store: RunStore | None = None,
        error: Exception | None = None,
        config: Any = CONFIG,
        family: str | None = None,
        generator: Faults | None = None,
        verifier: Faults | None = None,
        load: bool = True,
        self_test: SelfTest | None = None,
        **settings: object,
    ) -> None:
        """family: of the served pair's verifier, instead of the bundled one's. load: whether the
        service loads the pair at its start."""
        # Stored runs are read in a thread, which knows nothing of virtual time.
        quiet = {"max_running": 1, "queue_limit": 2, "scheduling_lengths": "off"}
        settings = {**quiet, **settings}
        self.config = load_config(settings, environ={"FLASHEDGE_HOME": str(home)})
        self.store = store or RunStore(self.config.state_dir / "runs.sqlite")
        self.engines = sim_engines(config=config, generator=generator, verifier=verifier)
        self.pair = SimPair(*both(self.engines), error=error, self_test=self_test)
        pair = find_pair("bundled", self.config)
        if family is not None:
            pair = replace(pair, verifier=replace(pair.verifier, family=family))
        self.served = ServedPair(pair, self.pair, self.config)
        loaded = self.served if load else None
        self.service = Service(
            self.config, lambda name: self.served, loaded, self.store, MathGrader()
        )

    def engines_for(self, run: Run) -> Engines:
        return self.served.build_engines(MathGrader(), WordGroups(), baseline=run.request.baseline)

    async def assert_idle(self) -> None:
        assert self.service.counts == {"queued": 0, "running": 0}
        looking = self.service._retention._task
        if looking is not None:  # in a thread, for which virtual time does not wait
            await looking
        await assert_nothing_left(self.engines)


Serve = Callable[..., Awaitable[Rig]]
"""Starts a service with the given settings: a fixture of the runtime's tests."""


async def log_of(run: Run | ArchivedRun, after: int = 0) -> list[tuple[int, Event]]:
    return [item async for item in run.events(after)]


async def ended(run: Run) -> str:
    """Wait for the end, whatever it is; the status."""
    await run._over.wait()
    await asyncio.sleep(0)
    return str(run.status)
