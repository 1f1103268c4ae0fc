"""A daemon process with its real service, store and API; only the engines are simulated.

`commands.SIMULATED` runs it with the daemon's own arguments.
"""

import sys
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.api.app import create_app
from flashedge.config import Config
from flashedge.daemon import process as daemon
from flashedge.engine.base import Health
from flashedge.engine.http_requests import PlainRequests
from flashedge.engine.self_test_turns import Turns
from flashedge.models.registry import find_pair
from flashedge.models.shape import ModelShape
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.served_pair import ServedPair
from flashedge.runtime.service import Service
from scripts.lab.sim.model import SimModel, StepTrace
from scripts.lab.sim.pair import simulated_pair
from tests.support.fake_protocols import FakeProtocols

TRACE = Path(__file__).parents[1] / "data" / "step_lengths_small.jsonl"
TINY = ModelShape(name="tiny", params=2**22, layers=2, heads=1, kv_heads=1, head_dim=16)


class SimulatedPair:
    """A served pair of simulated engines, in real time."""

    def __init__(self, protocols: type[FakeProtocols] = FakeProtocols) -> None:
        self._protocols = protocols
        self._model = SimModel(StepTrace.read(TRACE))
        self.generator, self.verifier = self._engines()
        self.stock_generator, self.stock_verifier = self._engines()

    def _engines(self) -> Any:
        return simulated_pair(self._model, TINY, TINY, kv_bytes=1 << 20, max_model_len=1024)

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def health(self) -> tuple[Health, Health]:
        return self.generator.health(), self.verifier.health()

    async def self_test(self, turns: Turns) -> dict[str, Any]:
        shape = {"window": 32, "group": 4, "prefill_windows": 4}
        return {
            "batch_invariant": True,
            "invariant_tokens": 1024,
            "replay_shape": shape,
            "score_shape": shape,
            "fingerprint": {"vllm": "simulated", "device": "none"},
        }

    async def serve_protocols(self, plain: PlainRequests) -> FakeProtocols:
        return self._protocols(plain)


def build_service(
    config: Config, *, load: bool = True, protocols: type[FakeProtocols] = FakeProtocols
) -> Service:
    """protocols: stands for vLLM's handlers."""

    def open_pair(name: str) -> ServedPair:
        return ServedPair(find_pair(name, config), SimulatedPair(protocols), config)

    store = RunStore(config.state_dir / "runs.sqlite")
    first = open_pair(config.pair) if load else None
    return Service(config, open_pair, first, store, MathGrader())


def make_app(config: Config, load: bool) -> Any:
    return create_app(build_service(config, load=load), config)


def run() -> None:
    sys.exit(daemon.main(make=make_app))


if __name__ == "__main__":
    run()
