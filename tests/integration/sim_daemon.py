"""The daemon with its real service, store and API; only the engines are simulated."""

from __future__ import annotations

import sys
from typing import Any

from test_http_over_service import SimulatedPair

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.api.app import create_app
from flashedge.config import Config
from flashedge.daemon import process as daemon
from flashedge.models.registry import find_pair
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.service import Service


def make_app(config: Config) -> Any:
    store = RunStore(config.state_dir / "runs.sqlite")
    pair = find_pair(config.pair, config)
    return create_app(Service(config, pair, SimulatedPair(), store, MathGrader()), config)


if __name__ == "__main__":
    sys.exit(daemon.main(make=make_app))
