"""What do deterministic requests cost, those that ask for it and the others?

Runs the same requests without the flag (A) and with it on a share of them (B), as A B A B, and
compares medians. Time is CPU time of one core, so that what else the machine does is not counted.

    python -m scripts.bench.determinism.cost [--rounds 3]

The last line is JSON. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

from flashedge.scheduling.determinism.replay_shape import ReplayShape
from scripts.bench.determinism.core import Core, Job

SHARES = (0, 2, 5, 10, 20, 50, 100)
"""Percent of the requests that are deterministic."""
REQUESTS = 50
TOKENS = 128
SPREAD = 40
"""Steps over which requests arrive."""
SHAPES = {
    "1 x 32": ReplayShape(window=32),
    "4 x 32": ReplayShape(window=32, group=4, prefill_windows=4),
    "2 x 64": ReplayShape(window=64, group=2, prefill_windows=2),
    "4 x 64": ReplayShape(window=64, group=4, prefill_windows=4),
    "8 x 32": ReplayShape(window=32, group=8, prefill_windows=8),
}
"""G x T, for the ablation; the first that is not single is the default."""
DEFAULT = "4 x 32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of A B")
    rounds = parser.parse_args().rounds
    core = Core(SHAPES[DEFAULT], max_num_seqs=64)
    jobs = make_load()
    run(core, jobs, 0)  # warm-up
    shares = [compare(core, jobs, share, rounds) for share in SHARES]
    shapes = []
    for name, shape in SHAPES.items():
        renew(core, shape)
        shapes.append({"shape": name, **compare(core, jobs, 100, 1)})
    renew(core, SHAPES[DEFAULT])
    stall = measure_stall(core, jobs)
    for rows in (shares, shapes):
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        for row in rows:
            print("| " + " | ".join(format_cell(value) for value in row.values()) + " |")
        print()
    print(stall)
    print(json.dumps({"shares": shares, "shapes": shapes, "stall": stall}))


def format_cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def renew(core: Core, shape: ReplayShape) -> None:
    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler

    core.renew(shape, EdgeScheduler)


def make_load() -> list[Job]:
    draw = Random(0)
    return [
        Job(
            name=f"r{number}",
            prompt=tuple(draw.choices(range(3, 500), k=draw.randint(20, 200))),
            max_tokens=TOKENS,
            seed=number,
            deterministic=False,
            arrival=draw.randrange(SPREAD),
        )
        for number in range(REQUESTS)
    ]


_runs = iter(range(10**9))


def run(core: Core, jobs: Sequence[Job], share: int) -> dict[str, float]:
    """Figures of one run with the flag on `share` percent of the requests."""
    count, number = round(len(jobs) * share / 100), next(_runs)
    every = len(jobs) / count if count else 0.0
    flagged = {int(i * every) for i in range(count)}
    some = [
        replace(job.again(name=f"{number}-{job.name}"), deterministic=i in flagged)
        for i, job in enumerate(jobs)
    ]
    renew(core, core.scheduler.shape)  # nothing is cached
    before = time.process_time()
    core.run(some)
    spent = time.process_time() - before
    plain = [job for job in some if not job.deterministic]
    counters = core.scheduler.replay_counters
    return {
        "tokens_per_cpu_s": sum(len(job.tokens) for job in some) / spent,
        "latency_s": median(job.end_s or 0.0 for job in some),
        "first_token_s": median(job.first_s or 0.0 for job in some),
        "others_latency_s": median(job.end_s or 0.0 for job in plain) if plain else 0.0,
        "stock_steps": float(counters["stock_steps"]),
        "other_steps": float(sum(counters[n] for n in ("shared_steps", "verify_passes"))),
        "rollbacks": float(counters["rollbacks"]),
        "recomputed_tokens": float(counters["recomputed_tokens"]),
    }


def compare(core: Core, jobs: Sequence[Job], share: int, rounds: int) -> dict[str, Any]:
    """A B A B …; ratios of B's median to A's."""
    found: dict[str, list[dict[str, float]]] = {"a": [], "b": []}
    for _ in range(rounds):
        found["a"].append(run(core, jobs, 0))
        found["b"].append(run(core, jobs, share))

    def middle(side: str, name: str) -> float:
        return median(figures[name] for figures in found[side])

    last = found["b"][-1]
    return {
        "percent": share,
        "throughput": middle("b", "tokens_per_cpu_s") / middle("a", "tokens_per_cpu_s"),
        "latency": middle("b", "latency_s") / middle("a", "latency_s"),
        "first_token": middle("b", "first_token_s") / middle("a", "first_token_s"),
        "others_latency": middle("b", "others_latency_s") / middle("a", "others_latency_s"),
        "stock_steps": int(last["stock_steps"]),
        "other_steps": int(last["other_steps"]),
        "rollbacks": int(last["rollbacks"]),
        "recomputed": int(last["recomputed_tokens"]),
    }


def measure_stall(core: Core, jobs: Sequence[Job]) -> dict[str, float]:
    """How long a step takes beside the longest prompt, in ms of wall time: without the flag the
    prompt is computed in vLLM's own chunks, with it in passes."""
    draw = Random(1)
    longest = tuple(draw.choices(range(3, 500), k=core.scheduler.max_model_len - 40))
    found: dict[str, float] = {}
    for flag in (False, True):
        renew(core, core.scheduler.shape)
        number = next(_runs)
        some = [job.again(name=f"{number}-{job.name}") for job in jobs[:16]]
        long = Job(
            name=f"{number}-long", prompt=longest, max_tokens=4, deterministic=flag, arrival=60
        )
        core.step_s.clear()
        core.run([*some, long])
        steps = sorted(core.step_s)
        name = "flagged" if flag else "plain"
        found[f"{name}_median_ms"] = 1000 * steps[len(steps) // 2]
        found[f"{name}_p99_ms"] = 1000 * steps[int(0.99 * len(steps))]
    return found


if __name__ == "__main__":
    main()
