"""Do deterministic requests give the same tokens alone and beside others?

Runs the same requests alone, beside 7 and beside 31 plain requests, with random arrivals and a KV
quota that preempts; without the flag; and with each safeguard removed. The kernels are this
machine's or emulated (`kernel_variance`). Log-probabilities are compared to the bit.

    python -m scripts.bench.determinism.requests [--quick]

The last line is JSON. About 25 minutes on one core; --quick takes 30 s.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from flashedge.scheduling.determinism import PassShape
from scripts.bench.determinism import kernel_variance
from scripts.bench.determinism.core import BUNDLED, Core, Job
from scripts.bench.determinism.kernel_variance import Kernels
from scripts.bench.determinism.scenario import Outcome, make_jobs, run_alone, run_loaded
from scripts.bench.determinism.wide_model import make_wide_model

GROUPED = PassShape(window=32, group=4, prefill_windows=4)
SINGLE = PassShape(window=32)
SHAPES = {Kernels.OWN: GROUPED, Kernels.BATCH: GROUPED, Kernels.ROW: SINGLE}
"""Where sums depend on a row's place, passes have one window."""
NEEDS = {
    "padding": Kernels.BATCH,
    "isolation": Kernels.BATCH,
    "absolute windows": Kernels.ROW,
    "commit gate": Kernels.BATCH,
    "salt": Kernels.BATCH,
}
"""The kernels on which a safeguard is missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is run."""

    requests: int
    max_tokens: int
    loads: tuple[int, ...]
    draws: tuple[tuple[Kernels, float], ...]
    """Kernels, and the temperature at which they are tried."""


FULL = Scale(
    requests=64,
    max_tokens=64,
    loads=(7, 31),
    draws=(
        (Kernels.OWN, 0.0),
        (Kernels.OWN, 1.0),
        (Kernels.BATCH, 0.0),
        (Kernels.BATCH, 1.0),
        (Kernels.ROW, 1.0),
    ),
)
ASYNCHRONOUS = replace(
    FULL, requests=12, max_tokens=150, loads=FULL.loads[-1:], draws=FULL.draws[2:3]
)
QUICK = Scale(
    requests=6, max_tokens=52, loads=(6,), draws=((Kernels.BATCH, 1.0), (Kernels.ROW, 1.0))
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few requests and one model, for CI")
    parser.add_argument(
        "--asynchronous",
        action="store_true",
        help="schedule steps ahead, as on a card; fewer and longer requests, 1 minute",
    )
    asked = parser.parse_args()
    quick = asked.quick
    scale = QUICK if quick else ASYNCHRONOUS if asked.asynchronous else FULL
    from flashedge.engine.vllm import compat

    compat.prepare_environment(1)
    kernel_variance.install()
    cases: list[dict[str, Any]] = []
    safeguards: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = {"bundled": BUNDLED}
        if not (quick or asked.asynchronous):
            models["wide"] = make_wide_model(Path(folder))
        for name, model in models.items():
            core = Core(GROUPED, model=model, is_async=asked.asynchronous)
            for case in run_model(core, scale):
                cases.append({"model": name, **case})
                print(cases[-1], file=sys.stderr, flush=True)
            if name == "bundled" and not asked.asynchronous:
                safeguards = run_safeguards(core, scale)
            core.close()
    print_tables(cases, safeguards)
    print(json.dumps({"cases": cases, "safeguards": safeguards}))


def run_model(core: Core, scale: Scale) -> Iterator[dict[str, Any]]:
    """Every kind of kernel, of sampling and of load; with the flag and without it."""
    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler

    for kernels, temperature in scale.draws:
        kernel_variance.current = kernels
        jobs = make_jobs(scale.requests, 0, max_tokens=scale.max_tokens, temperature=temperature)
        for flag in (True, False):
            some = [replace(job, deterministic=flag) for job in jobs]
            core.renew(SHAPES[kernels], EdgeScheduler)
            alone = run_alone(core, some)
            for load in scale.loads if flag else scale.loads[-1:]:
                outcome = run_loaded(core, some, alone, load, seed=load, name=f"l{load}")
                yield {
                    "kernels": kernels,
                    "sampling": "seeded" if temperature else "greedy",
                    "others": load,
                    "deterministic": flag,
                    **describe(outcome, some),
                }


def run_safeguards(core: Core, scale: Scale) -> list[dict[str, Any]]:
    """The same requests with one safeguard removed."""
    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler
    from scripts.bench.determinism.weakened import SAFEGUARDS

    jobs = make_jobs(scale.requests, 0, max_tokens=scale.max_tokens)

    def run(
        kernels: Kernels, shape: PassShape, removed: str, scheduler: type[EdgeScheduler]
    ) -> dict[str, Any]:
        kernel_variance.current = kernels
        core.renew(shape, scheduler)
        alone = run_alone(core, jobs)
        core.renew(shape, scheduler)
        outcome = run_loaded(core, jobs, alone, max(scale.loads), seed=5, name="s")
        return {"kernels": kernels, "removed": removed, **describe(outcome, jobs)}

    return [
        *(run(kernels, SHAPES[kernels], name, SAFEGUARDS[name]) for name, kernels in NEEDS.items()),
        run(Kernels.ROW, GROUPED, "one window a pass", EdgeScheduler),
    ]


def describe(outcome: Outcome, jobs: Sequence[Job]) -> dict[str, Any]:
    return {
        "requests": len(jobs),
        "differ": outcome.differ,
        "logprobs_differ": outcome.logprobs_differ,
        "rollbacks": outcome.counters["rollbacks"],
        "recomputed_tokens": outcome.counters["recomputed_tokens"],
        "verified_tokens": outcome.counters["verified_tokens"],
        "verify_passes": outcome.counters["verify_passes"],
        "preemptions": outcome.preemptions,
        "first_span": median(first for first, _ in outcome.spans) if outcome.spans else None,
        "second_span": median(second for _, second in outcome.spans) if outcome.spans else None,
        "same_tokens": outcome.same_tokens,
    }


def print_tables(cases: Sequence[dict[str, Any]], safeguards: Sequence[dict[str, Any]]) -> None:
    for rows in filter(None, (cases, safeguards)):
        names = list(rows[0])
        print("| " + " | ".join(names) + " |")
        print("|" + "---|" * len(names))
        for row in rows:
            print("| " + " | ".join(str(row[name]) for name in names) + " |")
        print()


if __name__ == "__main__":
    main()
