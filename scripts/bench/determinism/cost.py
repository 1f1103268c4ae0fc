"""What do deterministic requests cost, those that ask for it and the others?

Runs the same requests without the flag (A) and with it on a share of them (B), as A B A B, and
compares medians. Time is CPU time of one core, so that what else the machine does is not counted.

    python -m scripts.bench.determinism.cost [--rounds 3]

The last line is JSON. About six minutes a round on one core.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from flashedge.scheduling.determinism import PassShape
from scripts.bench.determinism.core import Core, Job
from scripts.bench.determinism.scenario import choose_evenly
from scripts.bench.determinism.wide_model import make_wide_model
from scripts.bench.smoke import parse_arguments

SHARES = (0, 2, 5, 10, 20, 50, 100)
"""Percent of the requests that are deterministic."""
ONE_OF_11 = 100 / 11
REQUESTS = 50
TOKENS = 128
LONG, STALLED_TOKENS = 16_384, 400
"""The prompt beside which others wait, and how much these generate."""
SPREAD = 40
"""Steps over which requests arrive."""
SHAPES = {
    "1 x 32": PassShape(window=32),
    "4 x 32": PassShape(window=32, group=4, prefill_windows=4),
    "2 x 64": PassShape(window=64, group=2, prefill_windows=2),
    "4 x 64": PassShape(window=64, group=4, prefill_windows=4),
    "8 x 32": PassShape(window=32, group=8, prefill_windows=8),
}
"""G x T, for the ablation: all requests deterministic, and one of eleven."""
DEFAULT = "4 x 32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of A B")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer")
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the prompt beside others")
    asked = parse_arguments(parser, rounds=1, requests=4, tokens=20, long=256)
    rounds = asked.rounds
    core = Core(SHAPES[DEFAULT], max_num_seqs=64)
    jobs = make_load(asked.requests, asked.tokens)
    run(core, jobs, 0)  # warm-up
    shares = [compare(core, jobs, share, rounds) for share in SHARES]
    shapes = []
    for name, shape in SHAPES.items():
        renew(core, shape)
        for some, share in ((jobs, 100), (make_eleven(asked.tokens), ONE_OF_11)):
            shapes.append({"shape": name, **compare(core, some, share, rounds)})
    core.close()
    stall = measure_stall(asked.long)
    for rows in (shares, shapes):
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        for row in rows:
            print("| " + " | ".join(format_cell(value) for value in row.values()) + " |")
        print()
    print(stall)
    print(json.dumps({"shares": shares, "shapes": shapes, "stall": stall}))


def format_cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def renew(core: Core, shape: PassShape) -> None:
    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler

    core.renew(shape, EdgeScheduler)


def make_eleven(tokens: int) -> list[Job]:
    """Eleven requests side by side. Ref: arXiv 2601.17768 Fig. 5."""
    draw = Random(2)
    return [
        Job(
            name=f"e{number}",
            prompt=tuple(draw.choices(range(3, 500), k=32)),
            max_tokens=4 * tokens - 64,
            seed=number,
            deterministic=False,
        )
        for number in range(11)
    ]


def make_load(requests: int = REQUESTS, tokens: int = TOKENS) -> list[Job]:
    draw = Random(0)
    return [
        Job(
            name=f"r{number}",
            prompt=tuple(draw.choices(range(3, 500), k=draw.randint(20, 200))),
            max_tokens=tokens,
            seed=number,
            deterministic=False,
            arrival=draw.randrange(SPREAD),
        )
        for number in range(requests)
    ]


_runs = iter(range(10**9))


def run(core: Core, jobs: Sequence[Job], share: float) -> dict[str, float]:
    """Figures of one run with the flag on `share` percent of the requests."""
    flagged, number = choose_evenly(len(jobs), share), next(_runs)
    some = [
        replace(job.again(name=f"{number}-{job.name}"), deterministic=i in flagged)
        for i, job in enumerate(jobs)
    ]
    renew(core, core.scheduler.passes.windows.shape)  # nothing is cached
    before = time.process_time()
    core.run(some)
    spent = time.process_time() - before
    plain = [job for job in some if not job.deterministic]
    counters = core.scheduler.passes.counters
    return {
        "tokens_per_cpu_s": sum(len(job.tokens) for job in some) / spent,
        "latency_s": median(job.output_s[-1] for job in some),
        "first_token_s": median(job.output_s[0] for job in some),
        "others_latency_s": median(job.output_s[-1] for job in plain) if plain else 0.0,
        "stock_steps": float(counters["stock_steps"]),
        "other_steps": float(sum(counters[n] for n in ("shared_steps", "verify_passes"))),
        "rollbacks": float(counters["rollbacks"]),
        "recomputed_tokens": float(counters["recomputed_tokens"]),
    }


def compare(core: Core, jobs: Sequence[Job], share: float, rounds: int) -> dict[str, Any]:
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


def measure_stall(long: int) -> dict[str, float]:
    """Pauses between two outputs of 16 plain requests beside a prompt of so many tokens, in ms of
    wall time. Without the flag the prompt is computed in vLLM's own chunks, with it in passes."""
    draw = Random(1)
    prompt = tuple(draw.choices(range(3, 500), k=long))
    found: dict[str, float] = {}
    stalled = min(STALLED_TOKENS, long)
    with tempfile.TemporaryDirectory() as folder:
        model = make_wide_model(Path(folder), positions=max(2 * long, 1024))
        core = Core(SHAPES[DEFAULT], model=model, max_model_len=max(long + 64, 1024))
        for name, flag in {"none": None, "plain": False, "flagged": True}.items():
            renew(core, core.scheduler.passes.windows.shape)
            others = [
                job.again(name=f"{name}-{job.name}", max_tokens=stalled, arrival=0)
                for job in make_load()[:16]
            ]
            beside = [
                Job(name=name, prompt=prompt, max_tokens=4, deterministic=flag, arrival=60)
                for flag in ([] if flag is None else [flag])
            ]
            core.run([*others, *beside])
            pauses = sorted(
                1000 * (b - a)
                for job in others
                for a, b in zip(job.output_s, job.output_s[1:], strict=False)
            )
            found[f"{name}_median_ms"] = median(pauses)
            found[f"{name}_p99_ms"] = pauses[int(0.99 * len(pauses))]
            found[f"{name}_most_ms"] = pauses[-1]
        core.close()
    return found


if __name__ == "__main__":
    main()
