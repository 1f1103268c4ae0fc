"""Measure an exported pair: `flashedge models eval` on the real engines, then the exact checker."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashedge.config import load_config
from flashedge.plots import draw_plot
from scripts.lab.evaluation.figures import estimate_mean
from scripts.lab.evaluation.measure import ProblemRecord
from scripts.train_pair.ceiling import measure_ceiling
from scripts.train_pair.judgement import judge, round_bounds
from scripts.train_pair.problems import Problem

PAIR = "trained"
MODELS = """
[generators.{pair}]
source = "{generator}"
dtype = "float32"
max_model_len = 1024

[verifiers.{pair}]
source = "{verifier}"
dtype = "float32"
max_model_len = 1024
family = "qwen_prm"
step_token = "<extra_0>"

[pairs.{pair}]
description = "just trained"
generator = "{pair}"
verifier = "{pair}"
memory = {{ generator_kv_bytes = "512MiB", verifier_kv_bytes = "2GiB" }}
sampling = {{ temperature = 0.8 }}
max_step_tokens = 192
max_path_tokens = 768
"""


def evaluate(
    pair: Path,
    folder: Path,
    problems: Sequence[Problem],
    file: Path,
    sizes: Sequence[int],
    seed: int,
    port: int,
) -> dict[str, Any]:
    """Evaluate the pair in the folders `generator` and `prm` of `pair`, and return the report.

    problems: those of `file`, in its order. An interrupted call is continued by the next one with
    the same folder. Raises CalledProcessError if `models eval` fails, after it printed why.
    """
    home = folder / "home"
    (home / "config").mkdir(parents=True, exist_ok=True)
    names = {name: (pair / name).resolve() for name in ("generator", "prm")}
    (home / "config" / "models.toml").write_text(
        MODELS.format(pair=PAIR, generator=names["generator"], verifier=names["prm"])
    )
    # four searches at once keep the batches large and their KV fits; it changes no result
    settings = {"HOME": str(home.resolve()), "PORT": str(port), "PAIR": PAIR, "MAX_RUNNING": "4"}
    env = {**os.environ, **{f"FLASHEDGE_{name}": value for name, value in settings.items()}}
    arguments = ["--problems", str(file), "--limit", str(len(problems)), "--seed", str(seed)]
    arguments += ["--n", ",".join(map(str, sizes)), "--output", str(folder)]
    flashedge = [sys.executable, "-m", "flashedge"]
    try:
        subprocess.run([*flashedge, "models", "eval", PAIR, *arguments], env=env, check=True)
    finally:
        subprocess.run([*flashedge, "down"], env=env, check=False, capture_output=True)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    by_id = {problem.id: problem for problem in problems}
    report["exact checker"] = judge(by_id, read_records(folder / "problems.jsonl"))
    draw(report["exact checker"]["reliability"], folder / "reliability_checked.svg")
    config = load_config({"pair": PAIR}, environ=env)
    n = max((size for size in sizes if size <= 16), default=min(sizes))
    found = [float(right) for right in asyncio.run(measure_ceiling(problems, n, config, seed))]
    figure = estimate_mean(found)
    report["exact checker"][f"beam-{n} judged by it (the ceiling)"] = {
        "value": figure["value"],
        "95 %": round_bounds((figure["low"] or 0.0, figure["high"] or 0.0)),
    }
    (folder / "report_checked.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def read_records(path: Path) -> list[ProblemRecord]:
    """Read the problem records that `models eval` wrote."""
    lines = path.read_text().splitlines()[1:]  # the first line holds the settings
    found = [ProblemRecord.from_json(json.loads(line)) for line in lines]
    return sorted(found, key=lambda record: record.index)


def draw(table: Sequence[dict[str, float]], path: Path) -> None:
    """Draw the reliability plot."""
    draw_plot(
        path,
        {"steps": [(row["said"], row["true"]) for row in table]},
        title="Reliability of the reward model, step by step",
        x="probability it gives",
        y="share of steps with nothing wrong so far",
        diagonal=True,
        points=True,
    )
