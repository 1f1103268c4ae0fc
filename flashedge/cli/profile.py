"""`profile`: measure the device, and the cost of the pair's steps on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from typer import Option

from flashedge import errors
from flashedge.cli import output
from flashedge.config import Config, load_config
from flashedge.console import LiteralConsole
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair

if TYPE_CHECKING:
    from flashedge.profiler.bench import Progress
    from flashedge.profiler.profile import Profile

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element, by dtype."""
Line = list[tuple[float, float]]  # points (FLOP/byte, FLOP/s)
DEVICE_PART = 0.25
"""Share of the progress bar for the device, near its share of the time; the rest is the models'."""


def profile(
    pair: Annotated[
        str | None,
        Option(metavar="PAIR", help="Pair to measure.", show_default="the setting `pair`"),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Measure less, in half a minute.")] = False,
    if_needed: Annotated[
        bool, Option("--if-needed", help="Measure only if no stored profile fits this machine.")
    ] = False,
    show: Annotated[bool, Option("--show", help="Only show the stored profile.")] = False,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the roofline to FILE (.svg, .png).")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure the device and the models, and fit cost curves that the daemon schedules by.

    Takes less than three minutes. No daemon may run meanwhile.
    """
    from flashedge.engine.profiles import find_profile, locate_profile
    from flashedge.plots import check_suffix, draw_plot

    if show and (quick or if_needed):
        raise errors.Conflict("--show measures nothing; leave out --quick and --if-needed")
    if plot is not None:
        check_suffix(plot)
    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    if not chosen.has_verifier:
        told = f"a pair without a verifier, such as {chosen.name}, can't be profiled"
        raise errors.ConfigError(told, hint="it is scheduled by estimates", param="pair")
    path = locate_profile(chosen, config)
    found = None
    if show or if_needed:
        kept = find_profile(chosen, config)
        found = kept.profile
        if show and found is None:
            raise errors.NotFound(
                f"pair {chosen.name} has no profile that fits: {kept.why}",
                hint="measure one: flashedge profile",
            )
    is_new = found is None
    if found is None:
        found = _measure_and_save(chosen, config, quick=quick)
    if plot is not None:
        lines, marks = build_roofline(found)
        title = f"Roofline: {found.fingerprint['device']}"
        draw_plot(plot, lines, title=title, x="FLOP/byte", y="FLOP/s", marks=marks, log=True)
        output.note(f"wrote {plot}")
    if as_json:
        output.print_json(found.to_json())
    else:
        _print_profile(found)
    output.note(f"{'stored in' if is_new else 'from'} {path}")


def renew_profile(config: Config) -> None:
    """Measure again before a daemon starts, if what the pair's profile depends on has changed.

    A failure is only reported: a daemon can run without a profile.
    """
    from flashedge.engine.profiles import find_profile

    try:
        pair = find_pair(config.pair, config)
        kept = find_profile(pair, config)
        if kept.changed:
            output.note(f"measuring the profile again: {kept.why}")
            _measure_and_save(pair, config, quick=True)
    except errors.FlashEdgeError as error:
        output.note(f"the profile was not measured: {error.line}")


def _measure_and_save(pair: Pair, config: Config, *, quick: bool) -> Profile:
    """Raises DaemonError if a daemon runs before or afterwards, EngineError, StoreError."""
    from flashedge.daemon.files import prepare_state_dir
    from flashedge.engine.profiles import locate_profile
    from flashedge.profiler.profile import save_profile

    _check_alone(config)
    prepare_state_dir(config)
    log = config.state_dir / "logs" / "profile.out"
    with _divert_output(log) as terminal, _show_bar(terminal) as report:
        found = asyncio.run(_measure(pair, config, quick=quick, on_progress=report))
    _check_alone(config)
    with _translate_errors(errors.StoreError):
        save_profile(found, locate_profile(pair, config))
    return found


async def _measure(pair: Pair, config: Config, *, quick: bool, on_progress: Progress) -> Profile:
    from flashedge.engine.platform import detect_device_kind
    from flashedge.engine.profiles import compute_profile_fingerprint
    from flashedge.engine.vllm.pair import VllmPair
    from flashedge.profiler.measure import profile_device, profile_models
    from flashedge.profiler.profile import Profile

    began = time.monotonic()
    fingerprint, kind = compute_profile_fingerprint(pair, config), detect_device_kind()
    with _translate_errors(errors.EngineError):
        device, warnings = await profile_device(
            kind,
            config.threads_per_engine,
            quick=quick,
            on_progress=lambda share, what: on_progress(share * DEVICE_PART, what),
        )
    on_progress(DEVICE_PART, "starting the engines")
    engines = VllmPair(pair, config)
    try:
        await engines.start()
        await engines.measure_memory()
        with _translate_errors(errors.EngineError):
            models = await profile_models(
                engines.build_probes(),
                quick=quick,
                on_progress=lambda share, what: on_progress(
                    DEVICE_PART + share * (1 - DEVICE_PART), what
                ),
            )
    finally:
        await engines.stop()
    return Profile(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        quick=quick,
        wall_s=round(time.monotonic() - began, 1),
        load=round(os.getloadavg()[0], 2),
        fingerprint=fingerprint,
        kind=kind,
        device=device,
        models=models,
        warnings=warnings,
    )


def _check_alone(config: Config) -> None:
    """Raises DaemonError if a daemon runs: its work would spoil the measurement."""
    from flashedge.daemon.files import find_holder

    pid = find_holder(config)
    if pid is not None:
        raise errors.DaemonError(
            f"a daemon runs (process {pid}); its work would spoil the measurement",
            hint="stop it, then measure: flashedge down && flashedge profile",
        )


@contextlib.contextmanager
def _translate_errors(kind: type[errors.FlashEdgeError]) -> Iterator[None]:
    from flashedge.profiler import ProfileError

    try:
        yield
    except ProfileError as error:
        raise kind(str(error), hint=error.hint) from error


@contextlib.contextmanager
def _divert_output(path: Path) -> Iterator[TextIO]:
    """Let this process and its engines print into the file `path`. Yields the real stderr."""

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
        with contextlib.suppress(OSError):  # the disk of the log may be full
            flush()
        for number, fd in enumerate(kept, start=1):
            os.dup2(fd, number)
            os.close(fd)


@contextlib.contextmanager
def _show_bar(terminal: TextIO) -> Iterator[Progress]:
    """Show a bar with the time left. Yields a function to call with the share in [0, 1] that is
    done, and with what is measured now."""
    from rich.progress import BarColumn, Progress, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    console = LiteralConsole(file=terminal)
    if not console.is_terminal:
        console.print("measuring: up to 3 minutes, half a minute with --quick", style="dim")
    words = output.build_text_column("left: {task.description}")
    columns = (BarColumn(), TimeElapsedColumn(), Left(), words)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("the device", total=1.0)
        yield lambda share, what: progress.update(task, completed=share, description=what)


def _print_profile(found: Profile) -> None:
    from flashedge.plots import draw_text_plot

    device = found.fingerprint["device"]
    output.say(f"measured {found.made_at} on {device}, in {found.wall_s:.0f} s")
    output.print_table(("device", "figure"), list_device_rows(found), "no figures")
    output.say()
    columns = ("fit", "overhead", "per sequence", "FLOP/s", "bytes/s", "error: median / p90")
    output.print_table(columns, list_fit_rows(found), "no fits")
    output.say()
    lines, marks = build_roofline(found)
    logs = {name: [(log10(x), log10(y)) for x, y in line] for name, line in lines.items()}
    axes = {"x": "log10 FLOP/byte", "y": "log10 FLOP/s"}
    width = min(120, shutil.get_terminal_size().columns)
    output.say(draw_text_plot(logs, title="Roofline", **axes, width=width, height=24, marks=marks))
    for warning in found.warnings:
        output.note(f"! {warning}")


def list_device_rows(profile: Profile) -> Iterator[tuple[str, str]]:
    """(what was measured, its figure) of the device."""
    for dtype, flops_per_s in profile.gemm_flops_per_s.items():
        yield f"GEMM {dtype}", format_rate(flops_per_s, "FLOP/s")
    yield "memory, copy", format_rate(profile.bytes_per_s, "B/s")
    for row in profile.device["transfers"]:
        kind = "pinned" if row["pinned"] else "pageable"
        yield f"{row['direction']}, {kind}", format_rate(row["bytes_per_s"], "B/s")
    yield "launch", format_short_time(profile.device["launch_s"])
    yield "launch and wait", format_short_time(profile.device["round_trip_s"])


def list_fit_rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    """For each fit (model and phase, overhead, per sequence, FLOP/s, bytes/s, median / p90 error).
    A rate is "not met" where no sample was bound by it."""
    for model in profile.models:
        for phase, fit in model.fits.items():
            yield (
                f"{model.name} {phase}",
                format_short_time(fit.overhead_s),
                format_short_time(fit.sequence_s),
                format_rate(fit.flops_per_s, "") if fit.flops_per_s else "not met",
                format_rate(fit.bytes_per_s, "") if fit.bytes_per_s else "not met",
                f"{fit.median_error:.1%} / {fit.p90_error:.1%}",
            )


def build_roofline(profile: Profile) -> tuple[dict[str, Line], frozenset[str]]:
    """The plot of FLOP/s against FLOP per byte: (lines, names of those that are points). Each dtype
    has a roof from its measured peak. A point is a product of matrices or an engine step."""
    points: dict[str, Line] = {}
    for row in profile.device["gemm"]:
        # A product of two n x n matrices takes 2 n^3 FLOP and moves three matrices.
        intensity = 2 * row["n"] / (3 * ELEMENT_BYTES[row["dtype"]])
        points.setdefault(f"GEMM {row['dtype']}", []).append((intensity, row["flops_per_s"]))
    for model in profile.models:
        for s in model.samples:
            at = (s.flops / s.bytes, s.flops / s.seconds)
            points.setdefault(f"{model.name} {s.phase}", []).append(at)
    every = [x for line in points.values() for x, _ in line]
    low, high = min(every) / 2, max(every) * 2
    roofs: dict[str, Line] = {}
    for dtype, peak in profile.gemm_flops_per_s.items():
        ridge = peak / profile.bytes_per_s
        corners = [x for x in (low, ridge, high) if low <= x <= high]
        roofs[f"roof {dtype}"] = [(x, min(peak, x * profile.bytes_per_s)) for x in corners]
    return {**roofs, **points}, frozenset(points)


def format_rate(value: float, unit: str) -> str:
    """Three digits, such as 12.3 GFLOP/s."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= 0.9995 * factor:  # rounds to the next prefix
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def format_short_time(seconds: float) -> str:
    """Three digits, such as 1.23 ms."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * factor:
            return f"{seconds / factor:.3g} {unit}"
    return "0" if seconds == 0 else f"{seconds * 1e9:.0f} ns"
