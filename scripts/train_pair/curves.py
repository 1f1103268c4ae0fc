"""Draw the loss curves of both trainings from their logs."""

from __future__ import annotations

import json
from pathlib import Path

from flashedge.plots import draw_plot
from scripts.train_pair.generator import PHASES as GENERATOR
from scripts.train_pair.trunk import PHASES as TRUNK


def draw_curves(work: Path, out: Path) -> None:
    """Draw loss against steps from the logs in `work` into `out` (.svg or .png)."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name, phases in (("generator", GENERATOR), ("trunk", TRUNK)):
        line, before = series.setdefault(name, []), 0
        for phase in phases:
            path = work / f"{name}-{phase.name}.jsonl"
            rows = path.read_text().splitlines() if path.exists() else []
            line += [
                (before + row["step"], row.get("words", row["loss"]))
                for row in map(json.loads, rows)
            ]
            before += phase.steps
    draw_plot(
        out, series, title="Training loss", x="step (8,192 tokens each)", y="nats a token", log=True
    )
