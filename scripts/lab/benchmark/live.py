"""Climbs the ladder on real engines.

Each rung has a daemon of its own, so that no rung finds what another one computed. A round goes
through all daemons, then the next round does (A B A B), so that no rung alone bears what drifts on
the machine. Each daemon warms up with a run that does not count.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from flashedge.client.sync_client import Client
from flashedge.config import Config
from flashedge.daemon import control as daemon_control
from flashedge.errors import ConfigError
from flashedge.files.problems import FileProblem
from flashedge.sizes import parse_size
from scripts.lab.benchmark.ladder import Rung
from scripts.lab.benchmark.live_run import LiveRun, RunKey, time_run

PLANNED = "plan"
"""Names the KV budget of the pair's own memory plan."""


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What the benchmark runs."""

    rungs: tuple[Rung, ...]
    problems: tuple[FileProblem, ...]

    widths: tuple[int, ...]
    """Values of n."""

    kv: Mapping[str, int | None]
    """Bytes of KV of both engines together, by name. See `parse_budget`."""

    rounds: int
    """How often each run is repeated."""

    strategy: str = "beam"
    seed: int = 0

    @property
    def runs(self) -> int:
        return len(self.keys)

    @cached_property
    def keys(self) -> tuple[RunKey, ...]:
        """All runs, in their order: a daemon for each (round, kv, rung)."""
        return tuple(
            RunKey(rung=rung.name, kv=kv, n=n, problem=problem.index, round=number)
            for number in range(self.rounds)
            for kv in self.kv
            for rung in self.rungs
            for n in self.widths
            for problem in self.problems
        )


def parse_budget(text: str) -> tuple[str, int | None]:
    """("plan", None), or ("64MiB", bytes). Raises ConfigError."""
    if text == PLANNED:
        return PLANNED, None
    size = parse_size(text)
    if size is not None and size >= 1 << 10:  # a bare "64" lacks its unit
        return text, size
    raise ConfigError(
        f"KV budget {text!r} is no size", hint=f"a size of both engines, like 64MiB, or {PLANNED}"
    )


def run_plan(
    plan: BenchPlan,
    config: Config,
    say: Callable[[str], None],
    done: Callable[[LiveRun], None],
    *,
    kept: Collection[RunKey] = (),
    command: Sequence[str] = daemon_control.PRODUCT,
) -> None:
    """Run the whole plan but the runs in `kept`, and report each to `done`.

    say: receives progress messages. command: starts a daemon. Raises the error of a daemon that
    does not start or is lost, and the error of a run.
    """
    rungs = {rung.name: rung for rung in plan.rungs}
    problems = {problem.index: problem for problem in plan.problems}
    left = (key for key in plan.keys if key not in kept)
    for (number, kv, name), keys in groupby(left, key=lambda w: (w.round, w.kv, w.rung)):
        rung = rungs[name]
        say(f"round {number + 1}, KV {kv}: a daemon for {name}")
        settings = {"features": rung.optimizations.to_setting(), **_memory(plan.kv[kv])}
        with _daemon(config, settings, command) as client:
            warm_up = _body(plan, rung, plan.problems[0], 1)  # an engine's first run is slow
            list(client.solve(warm_up))
            for key in keys:
                body = _body(plan, rung, problems[key.problem], key.n)
                done(time_run(client, body, key))


def _memory(kv_bytes: int | None) -> dict[str, int]:
    if kv_bytes is None:
        return {}
    return {"kv_bytes": kv_bytes // 2}


def _body(plan: BenchPlan, rung: Rung, problem: FileProblem, n: int) -> dict[str, Any]:
    return {
        "problem": problem.text,
        "strategy": plan.strategy,
        "n": n,
        "seed": plan.seed + problem.index,
        "baseline": rung.is_stock,
    }


@contextmanager
def _daemon(
    config: Config, settings: Mapping[str, object], command: Sequence[str]
) -> Iterator[Client]:
    """Run a daemon with its own state and the user's models, profile and calibrations."""
    with tempfile.TemporaryDirectory(prefix="flashedge-bench-") as folder:
        own = dataclasses.replace(config, state_dir=Path(folder), port=0)
        for kept in ("profiles", "calibrations"):
            if (config.state_dir / kept).is_dir():
                shutil.copytree(config.state_dir / kept, own.state_dir / kept)
        given = {"pair": own.pair, "host": own.host, "port": own.port, **settings}
        try:
            process = daemon_control.start(own, given, command)
            record = daemon_control.wait_ready(own, process)
            with Client(record.url, api_key=own.api_key) as client:
                yield client
        finally:
            daemon_control.stop(own)
