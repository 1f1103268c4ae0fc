"""Line plots, as a picture (matplotlib) or as text for a terminal (plotext).

A library is imported when a plot is drawn, so that no other command waits for it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashedge.errors import ConfigError

Series = Mapping[str, Sequence[tuple[float, float]]]
"""The points (x, y) of each line, by its name."""

SUFFIXES = (".svg", ".png")
_MARKERS = ("hd", "*", "+", "o", "x", "#", "@", "%")  # distinct without colour
_SHAPES = "osD^vP"
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
"""Colours that colour-blind readers can distinguish (Okabe and Ito)."""
_LINES = ["-", "--", "-.", ":", "-", "--", "-."]


def draw_plot(
    path: Path,
    series: Series,
    *,
    title: str,
    x: str,
    y: str,
    steps: bool = False,
    diagonal: bool = False,
    points: bool = False,
    marks: Collection[str] = (),
    log: bool = False,
) -> None:
    """Draw the lines of `series` into the picture `path`.

    `steps` holds each value until the next x, `diagonal` adds the line y = x, `points` marks every
    point, `log` makes both axes logarithmic, and the series in `marks` are points without a line.
    NaN leaves a gap. Raises ConfigError when the suffix is unknown or the file can't be written.
    """
    check_suffix(path)
    import matplotlib
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.hashsalt": "flashedge",
        "axes.prop_cycle": cycler(color=_COLOURS) + cycler(linestyle=_LINES),
        "text.parse_math": False,  # a name may have a dollar sign
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for index, (name, line) in enumerate(series.items()):
            shape = _SHAPES[index % len(_SHAPES)] if name in marks else "o" if points else ""
            axes.plot(
                [at for at, _ in line],
                [value for _, value in line],
                label=name,
                marker=shape,
                linestyle="none" if name in marks else None,
                drawstyle="steps-post" if steps else "default",
            )
        if diagonal:
            axes.axline((0, 0), slope=1, color="grey", linewidth=1, linestyle=":")
        axes.set(title=title, xlabel=x, ylabel=y)
        if log:
            axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        if series:
            axes.legend()
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise ConfigError(
                f"can't write {path}: {error.strerror or error}", hint="choose another path"
            ) from error


def check_suffix(path: Path) -> None:
    """Raises ConfigError unless `draw_plot` can draw a file with this suffix."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"can't draw {path}: its suffix is {path.suffix or 'missing'}",
            hint=f"choose a path that ends in {' or '.join(SUFFIXES)}",
        )


def draw_text_plot(
    series: Series,
    *,
    title: str,
    x: str,
    y: str,
    width: int,
    height: int,
    marks: Collection[str] = (),
) -> str:
    """Draw the lines of `series` as plain text of `width` columns and `height` rows. The series in
    `marks` are points without a line. Points with NaN or infinity are left out."""
    import plotext

    plotext.terminal.limit(False, False)  # keeps the given size on any terminal
    figure = plotext.figure
    figure.clear()  # the library has one global figure
    for index, (name, line) in enumerate(series.items()):
        kept = [(at, value) for at, value in line if math.isfinite(at) and math.isfinite(value)]
        signal = figure.signal(
            [at for at, _ in kept],
            [value for _, value in kept],
            marker=_MARKERS[index % len(_MARKERS)],
        )
        figure.draw((signal if name in marks else signal.lines()).label(name))
    figure.plot_size(width, height)
    figure.title(title)
    figure.label(x, "x")
    figure.label(y, "y")
    return str(figure.build().string(colorless=True))
