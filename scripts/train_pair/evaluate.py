"""Measure an exported pair: `flashedge models eval` on the real engines, then what only the exact
checker can add to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashedge.config import load_config
from flashedge.evaluation.figures import figure_of
from flashedge.evaluation.records import ProblemRecord
from flashedge.plots import line_plot
from scripts.train_pair.ceiling import ceiling
from scripts.train_pair.judged import judge, rounded
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
memory = {{ generator_kv_bytes = "512MiB", verifier_kv_bytes = "2GiB", total_bytes = "4GiB" }}
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
    """The report on the pair whose models are the folders `generator` and `prm` of `pair`.

    problems: those of `file`, in its order. Goes on where an earlier call with the same folder was
    cut. Raises CalledProcessError when `models eval` fails; it has said why.
    """
    home = folder / "home"
    (home / "config").mkdir(parents=True, exist_ok=True)
    names = {name: (pair / name).resolve() for name in ("generator", "prm")}
    (home / "config" / "models.toml").write_text(
        MODELS.format(pair=PAIR, generator=names["generator"], verifier=names["prm"])
    )
    # 4 searches at once keep the batches large, and their KV fits; the results don't depend on it
    settings = {"HOME": str(home.resolve()), "PORT": str(port), "PAIR": PAIR, "MAX_RUNNING": "4"}
    env = {**os.environ, **{f"FLASHEDGE_{name}": value for name, value in settings.items()}}
    asked = ["--problems", str(file), "--limit", str(len(problems)), "--seed", str(seed)]
    asked += ["--n", ",".join(map(str, sizes)), "--output", str(folder)]
    flashedge = [sys.executable, "-m", "flashedge"]
    try:
        subprocess.run([*flashedge, "models", "eval", PAIR, *asked], env=env, check=True)
    finally:
        subprocess.run([*flashedge, "down"], env=env, check=False, capture_output=True)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    by_id = {problem.id: problem for problem in problems}
    report["exact checker"] = judge(by_id, read_records(folder / "problems.jsonl"))
    draw(report["exact checker"]["reliability"], folder / "reliability_checked.svg")
    config = load_config({"pair": PAIR}, environ=env)
    n = max((size for size in sizes if size <= 16), default=min(sizes))
    found = [float(right) for right in asyncio.run(ceiling(problems, n, config, seed))]
    figure = figure_of(found)
    report["exact checker"][f"beam-{n} judged by it (the ceiling)"] = {
        "value": figure.value,
        "95 %": rounded((figure.low or 0.0, figure.high or 0.0)),
    }
    (folder / "report_checked.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def read_records(path: Path) -> list[ProblemRecord]:
    """What `models eval` kept, behind its first line of settings."""
    lines = path.read_text().splitlines()[1:]
    found = [ProblemRecord.from_json(json.loads(line)) for line in lines]
    return sorted(found, key=lambda record: record.index)


def draw(table: Sequence[dict[str, float]], path: Path) -> None:
    """The reliability plot."""
    line_plot(
        path,
        {"steps": [(row["said"], row["true"]) for row in table]},
        title="Reliability of the reward model, step by step",
        x="probability it gives",
        y="share of steps with nothing wrong so far",
        diagonal=True,
        points=True,
    )
