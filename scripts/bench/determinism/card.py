"""What would deterministic requests cost on an RTX 4090, by rollback or by batch-invariant kernels?

Nothing is measured here. The product's scheduler decides every step (`token_runner`). A step takes
what a roofline of the card's data sheet says, while the host works for the next one
(`priced_engine`). How often a shared step draws a wrong candidate is not known for this card: RATES
spans what the paper saw on its own. All is compared with the default engine without the flag.

    python -m scripts.bench.determinism.card [--part ways] [--loads 3] [--smoke]

Lengths follow the paper's ShareGPT (Table 3): log-normal with its means and medians. The part
`ways` compares shares of deterministic requests: of eleven side by side (Fig. 5), of requests that
are all there at once, and at 60 % of that rate. It writes a line for each as it goes, and goes on
where it was cut off. `shapes`: windows and groups (Fig. 12). `stalls`: how long other requests wait
during a prompt of 16k tokens. The last line is JSON.

Ref: arXiv 2601.17768 §5.
"""

import argparse
import json
import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from flashedge.models.memory.engine_memory import MAX_STEP_TOKENS
from flashedge.models.shape import ModelShape
from flashedge.scheduling.determinism import PassShape
from scripts.bench.daemon import ROOT, report
from scripts.bench.determinism.core import BUNDLED
from scripts.bench.determinism.priced_engine import (
    ASSUMED,
    CARD,
    MEASURED,
    Host,
    PricedEngine,
    Served,
    Timed,
)
from scripts.bench.determinism.scenario import choose_evenly
from scripts.bench.determinism.token_runner import VOCABULARY
from scripts.bench.flashtts.shapes import QWEN25_1_5B, QWEN25_7B
from scripts.bench.flashtts.study import format_table
from scripts.bench.mcts.figures import find_quantile
from scripts.bench.smoke import is_smoke, parse_arguments
from scripts.lab.statistics import interval

MODELS: Mapping[str, ModelShape] = {"1.5B": QWEN25_1_5B, "7B": QWEN25_7B}
RATES: Mapping[str, float] = {"rarely": 1e-4, "often": 4e-3}
"""How often a candidate is wrong. With `rarely`, windows of 64 recompute some 0.3 % of the tokens,
as the paper's ShareGPT offline (Table 4); with `often`, windows of 32 some 6 %, like its ShareGPT
online (Fig. 9)."""
HOSTS: Mapping[str, Host] = {"measured": MEASURED, "assumed": ASSUMED}
CASES = (
    ("7B", "measured", "rarely"),
    ("1.5B", "measured", "rarely"),
    ("7B", "assumed", "rarely"),
    ("7B", "measured", "often"),
)
"""Model, host, and how often a candidate is wrong."""
PARTS = ("ways", "shapes", "stalls")
LOADS = ("eleven", "at once", "at 60 %")
"""Eleven side by side (Fig. 5), all there at once, and at LOAD of the rate of that."""
CELL = ("model", "host", "wrong", "load", "requests", "seed")
SHARES = (0, 9, 50, 100)
"""Percent of the requests that are deterministic. 9 % is one of eleven."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "rollback": {},
    "rollback, one step at a time": {"overlaps": False},
    "invariant kernels, 1.28": {"slowdown": 1.28},
    "invariant kernels, 1.43": {"slowdown": 1.43},
    "invariant kernels, 1.73": {"slowdown": 1.73},
}
"""The slowdowns are those of vLLM's users on a 4090 D with Qwen3-1.7B: 22 % less throughput with
tiles tuned for that model and 30 % without, 73 % more latency of 8 requests without
(vllm-project/vllm #27433, #53247). The paper
has 1.32 to 1.56 for whole loads and 2.24 for eleven requests, of another engine on an H100."""
SHAPE = PassShape(window=64, group=4, prefill_windows=4)
"""What the self-test of a card tries first."""
WINDOWS = (16, 32, 64, 128, 256, 512)
GROUPS: Sequence[int] = (1, 2, 4, 8, 16, 32)
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


def list_ways() -> list[tuple[str, int]]:
    """The ways, each with its shares: of batch-invariant kernels all requests have the results."""
    return [
        (way, percent)
        for way, changes in WAYS.items()
        for percent in ((100,) if "slowdown" in changes else SHARES)
    ]


def serve_ways(
    engine: PricedEngine, jobs: Sequence[Timed], ways: Sequence[tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    """Ratios of each way to the same load on the default engine without the flag. Latencies are
    medians: of the requests without the flag (at 100 %, and by batch-invariant kernels, of all)."""
    plain = engine.serve(flag(jobs, 0))
    for way, percent in ways:
        one = replace(engine, **WAYS[way])
        served = one.serve(flag(jobs, 0 if one.slowdown > 1 else percent))
        yield {
            "way": way,
            "percent": percent,
            "throughput": served.tokens_per_s / plain.tokens_per_s,
            "others_p50": _others(plain, served),
            "p99": _at(served, 0.99) / _at(plain, 0.99),
            "first_token": _first(served) / _first(plain),
            "recomputed": served.recomputed,
            "rollbacks": served.counters["rollbacks"],
        }


def _at(served: Served, share: float) -> float:
    return find_quantile([job.latency_s for job in served.jobs], share)


def _first(served: Served) -> float:
    return median(job.first_s for job in served.jobs)


def _others(plain: Served, served: Served) -> float:
    """Median latency of the requests without the flag, or of all if each has it, relative to that
    of the same ones."""
    pairs = list(zip(plain.jobs, served.jobs, strict=True))
    pairs = [pair for pair in pairs if not pair[1].deterministic] or pairs
    return median(b.latency_s for _, b in pairs) / median(a.latency_s for a, _ in pairs)


def make_load(name: str, engine: PricedEngine, requests: int, seed: int) -> list[Timed]:
    """The requests of a load: one of LOADS."""
    if name == "eleven":
        draw, length = Random(seed), 16 if is_smoke() else CONTEXT // 4
        prompts = [tuple(draw.choices(range(VOCABULARY), k=64)) for _ in range(11)]
        return [Timed(prompt=p, seed=n, max_tokens=length) for n, p in enumerate(prompts)]
    jobs = make_jobs(requests, seed)
    if name == "at once":
        return jobs
    makespan_s = engine.serve(flag(jobs, 0)).makespan_s
    return make_jobs(requests, seed, LOAD * requests / makespan_s)


def compare_ways(asked: argparse.Namespace, checkpoint: Path) -> None:
    """Add a line to the file of results for each engine, load, seed and way that it lacks."""
    names = (*CELL, "way", "percent")
    known = {tuple(row[name] for name in names) for row in read_rows(asked.output)}
    for seed, (model, host, wrong), load in product(
        range(asked.loads), CASES[: 1 if is_smoke() else None], LOADS
    ):
        cell = (model, host, wrong, load, asked.requests, seed)
        if not (missing := [way for way in list_ways() if (*cell, *way) not in known]):
            continue
        engine = build_engine(MODELS[model], checkpoint, error_rate=RATES[wrong])
        engine = replace(engine, host=HOSTS[host])
        about = dict(zip(CELL, cell, strict=True))
        for row in serve_ways(engine, make_load(load, engine, asked.requests, seed), missing):
            add_row(asked.output, about | row)
        print(*cell, flush=True)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of results. What a kill has left of a row is cut off."""
    whole, _, cut = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
    if cut:
        file.write_text(f"{whole}\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines()]


def add_row(file: Path, row: Mapping[str, Any]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")


def summarize(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean of each figure over the loads, with a bootstrap 95 % interval of the throughput."""
    about = (*CELL[:-1], "way", "percent")
    names = ("throughput", "others_p50", "p99", "first_token", "recomputed")
    groups: defaultdict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in about)].append(row)
    found = []
    for key, some in groups.items():
        row = dict(zip(about, key, strict=True))
        row |= {name: fmean(each[name] for each in some) for name in names}
        low, high = interval([each["throughput"] for each in some])
        row |= {"from": low, "to": high, "rollbacks": sum(each["rollbacks"] for each in some)}
        found.append(row)
    return found


def format_ways(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page's table of `summarize`: throughput with its interval; median latency of others."""
    cases = list(dict.fromkeys((r["model"], r["host"], r["wrong"]) for r in rows))
    lines: defaultdict[tuple[Any, ...], dict[Any, str]] = defaultdict(dict)
    for row in rows:
        low, high = f"{row['from']:.2f}", f"{row['to']:.2f}"
        within = f" ({low}–{high})" if low != high else ""
        text = f"{row['throughput']:.2f}{within}; {row['others_p50']:.2f}"
        share = "any" if "slowdown" in WAYS[row["way"]] else f"{row['percent']} %"
        case = row["model"], row["host"], row["wrong"]
        lines[LOADS.index(row["load"]), [*WAYS].index(row["way"]), share][case] = text
    names = [", ".join(case) for case in cases]
    body = [
        [LOADS[load], [*WAYS][way], share, *(texts.get(case, "–") for case in cases)]
        for (load, way, share), texts in sorted(lines.items(), key=lambda one: one[0][:2])
    ]
    return format_table(["load", "way", "deterministic", *names], body)


def compare_shapes(
    engine: PricedEngine, jobs: Sequence[Timed], groups: Sequence[int] = GROUPS
) -> Iterator[dict[str, Any]]:
    """p99 latency and recomputed share of every window and group whose pass fits a step, all
    requests deterministic."""
    for group in groups:
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
    parser.add_argument("--requests", type=int, default=96, help="of a load")
    parser.add_argument("--loads", type=int, default=4)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "determinism-card.jsonl")
    asked = parse_arguments(parser, requests=6, loads=1, output=Path("rows.jsonl"), part=[*PARTS])
    from flashedge.engine.vllm import compat

    compat.prepare_environment(1)
    small = is_smoke()
    models = {"7B": MODELS["7B"]} if small else MODELS
    found: dict[str, list[dict[str, Any]]] = {}
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, parts = write_checkpoint(Path(folder)), asked.part or PARTS[:1]
        if "ways" in parts:
            compare_ways(asked, checkpoint)
            found["ways"] = summarize(read_rows(asked.output))
        for name, model in models.items():
            engine = build_engine(model, checkpoint, error_rate=RATES["often"])
            if "shapes" in parts:
                jobs = make_load(LOADS[2], engine, asked.requests, 0)
                shapes = compare_shapes(engine, jobs, GROUPS[3:4] if small else GROUPS)
                found.setdefault("shapes", []).extend({"model": name, **row} for row in shapes)
            if "stalls" in parts:
                stall = measure_stall(engine, 512 if small else LONG)
                found.setdefault("stalls", []).append({"model": name, **stall})
    for part, rows in found.items():
        if part == "ways":
            print(format_ways(rows))
            continue
        print(format_table(list(rows[0]), [[_cell(v) for v in row.values()] for row in rows]))
    report(simulated=CARD.sheet, **found)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
