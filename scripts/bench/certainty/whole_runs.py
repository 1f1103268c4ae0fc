"""Runs at full compute, made through the daemon once and found there again by every measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.cli.calibrate.runs import run_problems
from flashedge.cli.connection import connect_ready
from flashedge.config import Config
from flashedge.files.problems import LabelledProblem
from flashedge.models.registry import find_pair
from flashedge.runtime.records.recordings import Recording


def whole_runs(
    problems: Sequence[LabelledProblem],
    file: str,
    strategy: str,
    n: int,
    config: Config,
    options: Mapping[str, Any],
) -> tuple[Recording, ...]:
    """One run of each problem of the file so named. options: the strategy's own."""
    with connect_ready(config) as client:
        pair = find_pair(client.status()["pair"], config)
    settings = {"strategy": strategy, "n": n, "early_exit": False}
    settings |= {"pair": pair.name, "options": dict(options)}
    return run_problems(problems, settings, f"whole {file}", config)
