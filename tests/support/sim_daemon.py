"""A daemon process with its real service, store and API; only the engines are simulated.

`commands.SIMULATED` runs it with the daemon's own arguments.
"""

import sys
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.api.app import create_app
from flashedge.config import Config
from flashedge.daemon import process as daemon
from flashedge.models.registry import find_pair
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.served_pair import ServedPair
from flashedge.runtime.service import Service
from scripts.lab.sim.model import SimModel, StepTrace
from scripts.lab.sim.pair import simulated_pair
from tests.support.fake_protocols import FakeProtocols
from tests.support.paths import DATA
from tests.support.runtime_rig import TINY
from tests.support.service_rig import SimPair


def build_service(
    config: Config, *, load: bool = True, protocols: type[FakeProtocols] = FakeProtocols
) -> Service:
    """protocols: stands for vLLM's handlers."""
    model = SimModel(StepTrace.read(DATA / "step_lengths_small.jsonl"))

    def open_pair(name: str) -> ServedPair:
        engines = simulated_pair(model, TINY, TINY, kv_bytes=1 << 20, max_model_len=1024)
        pair = SimPair(*engines, start_s=0.0, protocols=protocols)
        return ServedPair(find_pair(name, config), pair, config)

    store = RunStore(config.state_dir / "runs.sqlite")
    first = open_pair(config.pair) if load else None
    return Service(config, open_pair, first, store, MathGrader())


def make_app(config: Config, load: bool) -> Any:
    return create_app(build_service(config, load=load), config)


def run() -> None:
    sys.exit(daemon.main(make=make_app))


if __name__ == "__main__":
    run()
