"""`profile`: what this device can do and what the pair's steps cost on it, measured and kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console

from flashedge.cli import output
from flashedge.config import Config, load_config
from flashedge.errors import (
    Conflict,
    DaemonError,
    EngineError,
    FlashEdgeError,
    NotFound,
    StoreError,
)
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair

if TYPE_CHECKING:
    from flashedge.profiler.probes import Progress
    from flashedge.profiler.profile import Profile

HEIGHT = 24
DEVICE_PART = 0.25  # of the bar; the rest are the models


def profile(
    pair: Annotated[str | None, typer.Option(help="Pair to measure.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points: half a minute.")] = False,
    if_needed: Annotated[
        bool, typer.Option("--if-needed", help="Only if no kept profile fits this machine.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing: show what is kept.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the roofline into this file (.svg, .png).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure device and models, fit a roofline to their steps, keep it for the daemon."""
    from flashedge.plots import check_suffix
    from flashedge.runtime.profiles import find_profile, profile_path

    if show and (quick or if_needed):
        raise Conflict("--show measures nothing; leave out --quick and --if-needed")
    if plot is not None:
        check_suffix(plot)
    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    path = profile_path(chosen, config)
    kept = find_profile(chosen, config) if show or if_needed else None
    if show and kept is not None and kept.profile is None:
        raise NotFound(
            f"pair {chosen.name} has no profile that fits: {kept.why}", hint="flashedge profile"
        )
    found = kept.profile if kept is not None else None
    measured = found is None
    if found is None:
        found = _measured(chosen, config, quick=quick)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        output.print_json(found.to_json())
    else:
        _print(found)
    output.note(f"{'kept in' if measured else 'from'} {path}")


def renew_profile(config: Config) -> None:
    """Measure again where the pair's profile was made on something else: before a daemon starts.

    What fails is told and stops nothing: a daemon needs no profile.
    """
    from flashedge.runtime.profiles import find_profile

    try:
        pair = find_pair(config.pair, config)
        kept = find_profile(pair, config)
        if kept.changed:
            output.note(f"profiling again: {kept.why}")
            _measured(pair, config, quick=True)
    except FlashEdgeError as error:
        output.note(f"not profiled: {error.line}")


def _measured(pair: Pair, config: Config, *, quick: bool) -> Profile:
    """Measure and keep. Raises DaemonError while a daemon runs, EngineError, StoreError."""
    import asyncio

    from flashedge.daemon.files import prepare_state_dir
    from flashedge.profiler.profile import save_profile
    from flashedge.runtime.profiles import profile_path

    _check_alone(config)
    prepare_state_dir(config)
    with _aside(config.state_dir / "logs" / "profile.out") as terminal, _bar(terminal) as tell:
        found = asyncio.run(_measure(pair, config, quick=quick, tell=tell))
    _check_alone(config)
    with _translated(StoreError):
        save_profile(found, profile_path(pair, config))
    return found


async def _measure(pair: Pair, config: Config, *, quick: bool, tell: Progress) -> Profile:
    from flashedge.engine.platform import device_kind
    from flashedge.engine.vllm.pair import VllmPair
    from flashedge.profiler.measure import profile_device, profile_models, profile_of
    from flashedge.runtime.profiles import profile_fingerprint

    began = time.monotonic()
    fingerprint, kind = profile_fingerprint(pair, config), device_kind()
    with _translated(EngineError):
        device, warnings = await profile_device(
            kind,
            config.threads_per_engine,
            quick=quick,
            on_progress=lambda share, what: tell(share * DEVICE_PART, what),
        )
    tell(DEVICE_PART, "starting the engines")
    engines = VllmPair(pair, config)
    try:
        await engines.start()
        with _translated(EngineError):
            models = await profile_models(
                engines.probes(),
                quick=quick,
                on_progress=lambda share, what: tell(DEVICE_PART + share * (1 - DEVICE_PART), what),
            )
    finally:
        await engines.stop()
    return profile_of(
        fingerprint, kind, device, models, quick=quick, began=began, warnings=warnings
    )


def _check_alone(config: Config) -> None:
    """Raises DaemonError when a daemon holds device and memory: neither's figures would be true."""
    from flashedge.daemon.files import find_holder

    pid = find_holder(config)
    if pid is not None:
        raise DaemonError(
            f"a daemon runs (process {pid}); its work would spoil the measurement",
            hint="flashedge down, then flashedge profile",
        )


@contextlib.contextmanager
def _translated(kind: type[FlashEdgeError]) -> Iterator[None]:
    from flashedge.profiler.errors import ProfileError

    try:
        yield
    except ProfileError as error:
        raise kind(str(error), hint=error.hint) from error


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[TextIO]:
    """What this process and its engines print goes into `path`; yields the real stderr."""

    def flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()

    flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with path.open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        with open(os.dup(kept[1]), "w", encoding="utf-8") as terminal:
            yield terminal
    finally:
        flush()
        for number, fd in enumerate(kept, start=1):
            os.dup2(fd, number)
            os.close(fd)


@contextlib.contextmanager
def _bar(terminal: TextIO) -> Iterator[Progress]:
    """A bar with the time left; its value moves it to a share in [0, 1]."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    console = Console(file=terminal)
    if not console.is_terminal:
        console.print("measuring: less than 3 minutes, with --quick half a minute", style="dim")
    columns = (BarColumn(), TimeElapsedColumn(), Left(), TextColumn("left: {task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("the device", total=1.0)
        yield lambda share, what: progress.update(task, completed=share, description=what)


# ---------------------------------------------------------------- telling


def _print(found: Profile) -> None:
    from flashedge.plots import terminal_plot
    from flashedge.profiler.report import device_rows, fit_rows, roofline

    print(f"measured {found.made_at} on {found.fingerprint['device']}, in {found.wall_s:.0f} s")
    output.print_table(("device", "figure"), device_rows(found), "no figures")
    print()
    columns = ("fit", "overhead", "a sequence", "FLOP/s", "bytes/s", "error: median / p90")
    output.print_table(columns, fit_rows(found), "no fits")
    print()
    lines, marks = roofline(found)
    logs = {name: [(log10(x), log10(y)) for x, y in line] for name, line in lines.items()}
    print(
        terminal_plot(
            logs,
            title="Roofline",
            x="log10 FLOP a byte",
            y="log10 FLOP/s",
            width=min(120, shutil.get_terminal_size().columns),
            height=HEIGHT,
            marks=marks,
        )
    )
    for warning in found.warnings:
        output.note(f"! {warning}")


def _draw(found: Profile, path: Path) -> None:
    from flashedge.plots import line_plot
    from flashedge.profiler.report import roofline

    lines, marks = roofline(found)
    line_plot(
        path,
        lines,
        title=f"Roofline: {found.fingerprint['device']}",
        x="FLOP a byte",
        y="FLOP/s",
        marks=marks,
        log=True,
    )
    output.note(f"drawn in {path}")
