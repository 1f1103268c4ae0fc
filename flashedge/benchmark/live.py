"""The ladder on real engines: a daemon of our own for each setting of the switches.

Rungs that differ by request alone (the stock loop is `baseline`) share a daemon. Rounds go through
all daemons again (A B A B), so that what drifts on the machine is no rung's. Each daemon warms up
with a run that does not count.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge import daemon_control
from flashedge.benchmark.ladder import Rung
from flashedge.benchmark.live_run import LiveRun, timed
from flashedge.client import Client
from flashedge.config import Config
from flashedge.errors import ConfigError
from flashedge.problem_file import FileProblem

FIELDS = frozenset(field.name for field in dataclasses.fields(Config))
PLANNED = "plan"  # the pair's own memory plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is run. kv: budgets of both engines together by name (see `budget_of`)."""

    rungs: tuple[Rung, ...]
    problems: tuple[FileProblem, ...]
    widths: tuple[int, ...]
    kv: Mapping[str, int | None]
    rounds: int
    strategy: str = "beam"
    seed: int = 0

    @property
    def runs(self) -> int:
        each = len(self.problems) * len(self.widths)
        return len(self.rungs) * each * len(self.kv) * self.rounds


def split_by_known(
    rungs: Sequence[Rung], known: frozenset[str] = FIELDS
) -> tuple[tuple[Rung, ...], dict[str, tuple[str, ...]]]:
    """(those that this version can run, of the others the switches that are missing)."""
    missing = {rung.name: rung.missing(known) for rung in rungs}
    can = tuple(rung for rung in rungs if not missing[rung.name])
    return can, {name: switches for name, switches in missing.items() if switches}


def budget_of(text: str) -> tuple[str, int | None]:
    """("plan", None), or ("64MiB", bytes). Raises ConfigError."""
    if text == PLANNED:
        return PLANNED, None
    sizes = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    for unit, factor in sizes.items():
        number = text.removesuffix(unit)
        if text.endswith(unit) and number.isascii() and number.isdigit():
            return text, int(number) * factor
    raise ConfigError(
        f"KV budget {text!r} is no size", mend=f"a size of both engines, like 64MiB, or {PLANNED}"
    )


def carried_out(
    course: Course,
    config: Config,
    say: Callable[[str], None],
    done: Callable[[LiveRun], None],
    command: Sequence[str] = daemon_control.PRODUCT,
) -> None:
    """Run all of it, telling `done` of each run; command: of a daemon. Raises what a daemon raises
    that does not start or is lost, and the error of a run."""
    for number in range(course.rounds):
        for kv, kv_bytes in course.kv.items():
            for settings, rungs in _groups(course.rungs):
                say(f"round {number + 1}, KV {kv}: a daemon for {', '.join(r.name for r in rungs)}")
                memory = _memory(kv_bytes)
                with _daemon(config, {**settings, **memory}, command) as client:
                    for rung in rungs:  # warm up: the first run of an engine is slow
                        list(client.solve(_body(course, rung, course.problems[0], 1)))
                    for n in course.widths:
                        for problem in course.problems:
                            for rung in _turned(rungs, number + problem.index):
                                body = _body(course, rung, problem, n)
                                which = {"kv": kv, "n": n, "problem": problem.index}
                                mine = {**which, "round": number, "rung": rung.name}
                                done(timed(client, body, mine))


def _groups(rungs: Sequence[Rung]) -> list[tuple[dict[str, bool], list[Rung]]]:
    """Rungs of equal settings together, in order."""
    groups: list[tuple[dict[str, bool], list[Rung]]] = []
    for rung in rungs:
        settings = rung.settings(FIELDS)
        same = next((found for known, found in groups if known == settings), None)
        if same is None:
            groups.append((settings, [rung]))
        else:
            same.append(rung)
    return groups


def _turned(rungs: Sequence[Rung], by: int) -> Sequence[Rung]:
    """Who goes first changes from problem to problem."""
    at = by % len(rungs)
    return [*rungs[at:], *rungs[:at]]


def _memory(kv_bytes: int | None) -> dict[str, int]:
    if kv_bytes is None:
        return {}
    return {"generator_kv_bytes": kv_bytes // 2, "verifier_kv_bytes": kv_bytes // 2}


def _body(course: Course, rung: Rung, problem: FileProblem, n: int) -> dict[str, Any]:
    return {
        "problem": problem.text,
        "strategy": course.strategy,
        "n": n,
        "seed": course.seed + problem.index,
        "baseline": rung.stock,
    }


@contextmanager
def _daemon(
    config: Config, settings: Mapping[str, object], command: Sequence[str]
) -> Iterator[Client]:
    """A daemon with state of its own and the user's models, profile and calibrations."""
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
