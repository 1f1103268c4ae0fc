"""Draw the loss curves of both trainings from their logs."""

import json
from pathlib import Path

from flashedge.plots import draw_plot


def draw_curves(work: Path, out: Path) -> None:
    """Draw loss against steps from the logs in `work` into `out` (.svg or .png)."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name in ("generator", "trunk"):
        rows = map(json.loads, (work / f"{name}.jsonl").read_text().splitlines())
        series[name] = [(row["step"], row.get("words", row["loss"])) for row in rows]
    draw_plot(out, series, title="Training loss", x="step", y="nats a token", log=True)
