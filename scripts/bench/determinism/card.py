"""What would deterministic requests cost on an RTX 4090?

Nothing is measured here. The product's scheduler decides every step (`token_runner`), and a step
takes what a roofline of the card's data sheet says, with the overheads of `benchmark.devices`
(`priced_engine`). How often a shared step draws a wrong candidate is not known for this card: RATES
spans what the paper saw on its own.

    python -m scripts.bench.determinism.card [--requests 192] [--seeds 2] [--quick]

Lengths follow the paper's ShareGPT (Table 3): log-normal with its means and medians. Reported are
shares of deterministic requests, against none, all there at once and at 60 % of that rate; one of
eleven (Fig. 5); windows and groups (Fig. 12); and how long other requests wait beside a prompt of
16k tokens. The last line is JSON. About 20 minutes on one core.

Ref: arXiv 2601.17768 §5.
"""

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from flashedge.cli.progress import show_bar
from flashedge.models.memory.engine_memory import MAX_STEP_TOKENS
from flashedge.models.shape import ModelShape
from flashedge.scheduling.determinism import PassShape
from scripts.bench.daemon import report
from scripts.bench.determinism.core import BUNDLED
from scripts.bench.determinism.priced_engine import CARD, PricedEngine, Served, Timed
from scripts.bench.determinism.scenario import choose_evenly
from scripts.bench.determinism.token_runner import VOCABULARY
from scripts.bench.flashtts.shapes import QWEN25_1_5B, QWEN25_7B
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.figures import find_quantile
from scripts.bench.smoke import parse_arguments

MODELS: Mapping[str, ModelShape] = {"1.5B": QWEN25_1_5B, "7B": QWEN25_7B}
RATES: Mapping[str, float] = {"rarely": 1e-4, "often": 4e-3}
"""How often a candidate is wrong. With `rarely`, windows of 64 recompute some 0.3 % of the tokens,
as the paper's ShareGPT offline (Table 4); with `often`, windows of 32 some 6 %, like its ShareGPT
online (Fig. 9)."""
SHARES = (0, 2, 5, 10, 20, 50, 100)
SHAPE = PassShape(window=64, group=4, prefill_windows=4)
"""What the self-test of a card tries first."""
WINDOWS, GROUPS = (16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 32)
CONTEXT, LONG = 4096, 16_384
PROMPT, ANSWER = (304.0, 136.0), (192.0, 118.0)
"""Mean and median of the lengths, in tokens."""
LOAD = 0.6
"""Of the requests a second that are finished when all are there at once."""


def build_engine(
    model: ModelShape, checkpoint: Path, *, error_rate: float = RATES["rarely"]
) -> PricedEngine:
    """The engine whose variations are compared."""
    return PricedEngine(
        model=model, checkpoint=checkpoint, shape=SHAPE, error_rate=error_rate, context=CONTEXT
    )


def make_jobs(count: int, seed: int, rate_per_s: float = 0.0) -> list[Timed]:
    """Requests with the paper's lengths. rate_per_s: of their Poisson arrivals; 0: all at once."""
    draw, arrived_s = Random(seed), 0.0
    jobs = []
    for number in range(count):
        arrived_s += draw.expovariate(1.0)
        jobs.append(
            Timed(
                prompt=tuple(draw.choices(range(VOCABULARY), k=draw_length(draw, PROMPT))),
                seed=number,
                max_tokens=draw_length(draw, ANSWER),
                arrived_s=arrived_s / rate_per_s if rate_per_s else 0.0,
            )
        )
    return jobs


def draw_length(draw: Random, lengths: tuple[float, float]) -> int:
    """From a log-normal distribution, between 4 tokens and a third of the context."""
    mean, middle = lengths
    sigma = math.sqrt(2 * math.log(mean / middle))
    return max(4, min(CONTEXT // 3, round(middle * math.exp(draw.gauss(0.0, sigma)))))


def flag(jobs: Sequence[Timed], percent: int) -> list[Timed]:
    """The requests, a share of them deterministic, spread evenly, and none served yet."""
    chosen = choose_evenly(len(jobs), percent)
    return [replace(job, deterministic=i in chosen, token_s=[]) for i, job in enumerate(jobs)]


def compare_shares(engine: PricedEngine, loads: Sequence[Sequence[Timed]]) -> list[dict[str, Any]]:
    """Ratios to the same loads without the flag, the mean of the loads; rollbacks are summed."""
    plain = [engine.serve(flag(jobs, 0)) for jobs in loads]
    rows = []
    for percent in SHARES:
        served = [engine.serve(flag(jobs, percent)) for jobs in loads]
        pairs = list(zip(plain, served, strict=True))
        rows.append(
            {
                "percent": percent,
                "throughput": fmean(b.tokens_per_s / a.tokens_per_s for a, b in pairs),
                "p50": fmean(_at(b, 0.5) / _at(a, 0.5) for a, b in pairs),
                "p99": fmean(_at(b, 0.99) / _at(a, 0.99) for a, b in pairs),
                "first_token": fmean(_first(b) / _first(a) for a, b in pairs),
                "others_p50": fmean(_others(a, b) for a, b in pairs) if percent < 100 else None,
                "recomputed": fmean(one.recomputed for one in served),
                "rollbacks": sum(one.counters["rollbacks"] for one in served),
            }
        )
    return rows


def _at(served: Served, share: float) -> float:
    return find_quantile([job.latency_s for job in served.jobs], share)


def _first(served: Served) -> float:
    return median(job.first_s for job in served.jobs)


def _others(plain: Served, served: Served) -> float:
    """Median latency of the requests without the flag, relative to that of the same ones."""
    pairs = [
        pair for pair in zip(plain.jobs, served.jobs, strict=True) if not pair[1].deterministic
    ]
    return median(b.latency_s for _, b in pairs) / median(a.latency_s for a, _ in pairs)


def compare_eleven(engine: PricedEngine) -> dict[str, float]:
    """Eleven requests side by side, one of them deterministic. Ref: Fig. 5."""
    draw = Random(2)
    jobs = [
        Timed(
            prompt=tuple(draw.choices(range(VOCABULARY), k=64)),
            seed=number,
            max_tokens=CONTEXT // 4,
        )
        for number in range(11)
    ]
    plain, served = engine.serve(flag(jobs, 0)), engine.serve(flag(jobs, 9))
    assert sum(job.deterministic for job in served.jobs) == 1, "one of eleven"
    return {
        "throughput": served.tokens_per_s / plain.tokens_per_s,
        "others_p50": _others(plain, served),
        "recomputed": served.recomputed,
    }


def compare_shapes(engine: PricedEngine, jobs: Sequence[Timed]) -> Iterator[dict[str, Any]]:
    """p99 latency and recomputed share of every window and group whose pass fits a step, all
    requests deterministic."""
    for group in GROUPS:
        for window in WINDOWS:
            shape = PassShape(window=window, group=group, prefill_windows=group)
            if shape.rows > MAX_STEP_TOKENS:
                continue
            served = replace(engine, shape=shape).serve(flag(jobs, 100))
            yield {
                "group": group,
                "window": window,
                "p50_s": _at(served, 0.5),
                "p99_s": _at(served, 0.99),
                "recomputed": served.recomputed,
                "rollbacks": served.counters["rollbacks"],
            }


def measure_stall(engine: PricedEngine, long: int = LONG) -> dict[str, float]:
    """The longest and the p99 pause between two tokens of 16 plain requests, in ms, beside a prompt
    of `long` tokens: none, plain, or deterministic."""
    engine = replace(engine, context=long + 64)
    draw = Random(1)
    others = [
        Timed(prompt=tuple(draw.choices(range(VOCABULARY), k=64)), seed=number, max_tokens=400)
        for number in range(16)
    ]
    prompt = tuple(draw.choices(range(VOCABULARY), k=long))
    found: dict[str, float] = {}
    for name, flagged in {"none": None, "plain": False, "flagged": True}.items():
        jobs = flag(others, 0)
        if flagged is not None:
            late = others[0].arrived_s + 0.5
            jobs.append(
                Timed(prompt=prompt, seed=0, max_tokens=4, deterministic=flagged, arrived_s=late)
            )
        served = engine.serve(jobs)
        pauses = [
            1000 * (b - a)
            for job in served.jobs[: len(others)]
            for a, b in zip(job.token_s, job.token_s[1:], strict=False)
        ]
        found |= {f"{name}_p99_ms": find_quantile(pauses, 0.99), f"{name}_most_ms": max(pauses)}
        if flagged is not None:
            found[f"{name}_first_token_s"] = served.jobs[-1].first_s
    return found


def write_checkpoint(folder: Path) -> Path:
    """The bundled generator's files with a long context, without weights."""
    for file in BUNDLED.glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((BUNDLED / "config.json").read_text())
    config["max_position_embeddings"] = 2 * LONG
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=192, help="of a load")
    parser.add_argument("--seeds", type=int, default=2, help="loads")
    parser.add_argument("--quick", action="store_true", help="one small case, for CI")
    asked = parse_arguments(parser, quick=True, requests=24, seeds=1)
    from flashedge.engine.vllm import compat

    compat.prepare_environment(1)
    models = {"7B": MODELS["7B"]} if asked.quick else MODELS
    rates = {"rarely": RATES["rarely"]} if asked.quick else RATES
    shares, elevens, shapes, stalls = [], [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        show_bar("models", len(models), unit="models") as advance,
    ):
        checkpoint = write_checkpoint(Path(folder))
        for name, model in models.items():
            engine = build_engine(model, checkpoint)
            at_once = [make_jobs(asked.requests, seed) for seed in range(asked.seeds)]
            per_s = LOAD * asked.requests / engine.serve(flag(at_once[0], 0)).makespan_s
            spread = [make_jobs(asked.requests, seed, per_s) for seed in range(asked.seeds)]
            for rate, chance in rates.items():
                one = replace(engine, error_rate=chance)
                elevens.append({"model": name, "wrong": rate, **compare_eleven(one)})
                for load, jobs in {"at once": at_once, f"{per_s:.1f}/s": spread}.items():
                    about = {"model": name, "wrong": rate, "arrivals": load}
                    shares += [{**about, **row} for row in compare_shares(one, jobs)]
            if not asked.quick:
                often = replace(engine, error_rate=RATES["often"])
                shapes += [{"model": name, **row} for row in compare_shapes(often, spread[0])]
            stalls.append({"model": name, **measure_stall(engine)})
            advance(1)
    for rows in filter(None, (shares, elevens, shapes, stalls)):
        print(format_table(list(rows[0]), [[_cell(v) for v in row.values()] for row in rows]))
    report(simulated=CARD.sheet, shares=shares, elevens=elevens, shapes=shapes, stalls=stalls)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
