"""A profile as rows of tables and as lines of a plot."""

from __future__ import annotations

from collections.abc import Iterator

from flashedge.profiler.profile import Profile

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
Row = tuple[str, str]
Line = list[tuple[float, float]]


def list_device_rows(profile: Profile) -> Iterator[Row]:
    for dtype, flops_per_s in profile.gemm_flops_per_s.items():
        yield f"GEMM {dtype}", format_rate(flops_per_s, "FLOP/s")
    yield "memory, copy", format_rate(profile.bytes_per_s, "B/s")
    for row in profile.device["transfers"]:
        kind = "pinned" if row["pinned"] else "pageable"
        yield f"{row['direction']}, {kind}", format_rate(row["bytes_per_s"], "B/s")
    yield "launch", format_duration(profile.device["launch_s"])
    yield "launch and wait", format_duration(profile.device["round_trip_s"])


def list_fit_rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    """(what, overhead, per sequence, FLOP/s, bytes/s, median / p90 error) of each fit."""
    for model in profile.models:
        for phase, fit in model.fits.items():
            yield (
                f"{model.name} {phase}",
                format_duration(fit.overhead_s),
                format_duration(fit.sequence_s),
                format_rate(fit.flops_per_s, "") if fit.flops_per_s else "not met",
                format_rate(fit.bytes_per_s, "") if fit.bytes_per_s else "not met",
                f"{fit.median_error:.1%} / {fit.p90_error:.1%}",
            )


def build_roofline(profile: Profile) -> tuple[dict[str, Line], frozenset[str]]:
    """The plot of FLOP/s against FLOP per byte: (lines, names of those that are points). Each dtype
    has a roof from its measured peak. The points are the products and all steps."""
    points: dict[str, Line] = {}
    for row in profile.device["gemm"]:
        intensity = 2 * row["n"] / (3 * BYTES[row["dtype"]])
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


def format_duration(seconds: float) -> str:
    """Three digits, such as 1.23 ms."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * factor:
            return f"{seconds / factor:.3g} {unit}"
    return "0" if seconds == 0 else f"{seconds * 1e9:.0f} ns"
