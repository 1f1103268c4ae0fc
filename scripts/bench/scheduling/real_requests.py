"""Which order of waiting requests is the best on a real engine?

    python -m scripts.bench.scheduling.real_requests [--workloads "cv 1.09" trace] [--seeds 3]

The bundled generator in vLLM, in batches of 8, with the product's own means: the order of programs
is sent to the engine at most every 20 ms while requests come and go. Requests, arrivals,
predictions and orders are those of `request_orders`, all lengths divided by four; each output is
drawn to its given length. Rates are multiples of what this engine finishes while all requests are
there at once, measured before. Every policy gets the same requests at the same times, one policy
after the other within each seed and rate, in an order that rotates. Ratios are paired by seed.

A study that is interrupted goes on where it was: runs/scheduling/real_requests.jsonl. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest
from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.generator import VllmGenerator, build_params
from flashedge.engine.vllm.pair import VllmPair
from flashedge.files.journal import Journal
from flashedge.models.registry import find_pair
from flashedge.types import Sampling, TokenIds
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.scheduling.request_orders import (
    NAMES,
    POINT_RIVALS,
    WORKLOADS,
    RequestLoad,
    Rivals,
    WaitingOrder,
    draw_load,
    sort_waiting,
)
from scripts.bench.scheduling.study import OUTPUT, compare_paired, estimate_mean
from scripts.bench.smoke import parse_arguments
from scripts.bench.turns import rotate
from scripts.lab.benchmark.load.timings import Timings, compute_order_quality
from scripts.lab.statistics import mean

BATCH_SIZE = 8
SHRINK = 4
"""What all lengths are divided by. The bundled generator's context has 1,024 tokens."""
RATES = (0.5, 0.9, 1.5, 3.0, 8.0)
LEAST_INTERVAL_S = 0.02
"""Between two orders that are sent, as in `runtime.programs`."""
LEAST_TOKEN, VOCABULARY = 10, 400
"""Prompts are drawn from these tokens. No two share a prefix."""
BATCH = "batch"
"""The rate of all requests at once."""
FIGURES = ("per_token_s", "per_token_p90_s", "ttft_s", "latency_s")
BATCH_FIGURE = "time_to_30_percent_s"
"""The paper's time@3K of 10K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement. Implements `JournalRecord`."""

    workload: str
    seed: int
    rate: str
    policy: str
    figures: dict[str, float]

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.workload, self.seed, self.rate, self.policy

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Cell:
        return cls(**fields)


class GeneratorAlone(VllmPair):
    """The bundled pair, of which only the generator starts, in small batches."""

    def _build_options(self, name: str, *args: Any) -> EngineOptions:
        return replace(super()._build_options(name, *args), max_num_seqs=BATCH_SIZE)

    async def start(self) -> None:
        await asyncio.to_thread(self._build)
        await self.generator.start()

    async def stop(self) -> None:
        await self.generator.stop()


class Serving:
    """Serves one load in real time, and keeps the order of what waits at the engine."""

    def __init__(self, generator: VllmGenerator, load: RequestLoad) -> None:
        self._generator = generator
        self._load = load
        self._waiting: set[int] = set()
        self._changed = asyncio.Event()
        self._first_s = np.full(len(load), np.nan)
        self._finished_s = np.full(len(load), np.nan)
        self._names = (f"{time.monotonic_ns()}-{n}" for n in itertools.count())
        self._keys = list(itertools.islice(self._names, len(load)))
        """A program of its own for each request."""

    async def run(self, arrived_s: Sequence[float], order: WaitingOrder | None) -> Timings:
        """order: None leaves the engine's queue as it is."""
        began_s = time.monotonic()

        def now() -> float:
            return time.monotonic() - began_s

        ordering = None if order is None else asyncio.create_task(self._send_orders(order, now))
        async with asyncio.TaskGroup() as group:
            for number, due_s in enumerate(arrived_s):
                await asyncio.sleep(max(0.0, due_s - now()))
                group.create_task(self._serve(number, now))
        if ordering is not None:
            ordering.cancel()
            with suppress(asyncio.CancelledError):
                await ordering
            await self._generator.rank_programs([])
        arrived = np.asarray(arrived_s, dtype=np.float64)
        waits_s, latencies_s = self._first_s - arrived, self._finished_s - arrived
        return Timings(arrived, waits_s, waits_s, latencies_s, self._load.output_tokens)

    async def _serve(self, number: int, now: Callable[[], float]) -> None:
        generator, tokens = self._generator, int(self._load.output_tokens[number])
        request = ExtendRequest(
            token_ids=self._make_prompt(number),
            seed=number,
            sampling=Sampling(temperature=0.8),
            max_tokens=tokens,
            to_boundary=False,
            program=self._keys[number],
        )
        to_the_limit = {"stop_token_ids": [], "ignore_eos": True}
        params = build_params(request, generator.codec, generator.max_model_len, **to_the_limit)
        self._waiting.add(number)
        self._changed.set()
        drawn = 0
        async with aclosing(generator.stream(request, params)) as stream:
            async for chunk in stream:
                if not drawn and chunk.token_ids:
                    self._first_s[number] = now()
                    self._waiting.discard(number)
                drawn += len(chunk.token_ids)
        if drawn != tokens:
            raise RuntimeError(f"request {number} drew {drawn} tokens, not {tokens}")
        self._finished_s[number] = now()
        self._changed.set()

    def _make_prompt(self, number: int) -> TokenIds:
        draw = Random(f"{self._load.seed} {number}")
        count = int(self._load.prompt_tokens[number])
        return tuple(draw.randrange(LEAST_TOKEN, VOCABULARY) for _ in range(count))

    async def _send_orders(self, order: WaitingOrder, now: Callable[[], float]) -> None:
        """Send the order whenever something came or went."""
        sent: list[str] = []
        while True:
            await self._changed.wait()
            self._changed.clear()
            waiting = np.array(sorted(self._waiting), dtype=np.int64)
            if len(waiting):
                keys = [self._keys[at] for at in sort_waiting(order, waiting, now())]
                if keys != sent:
                    sent = keys
                    await self._generator.rank_programs(keys)
            await asyncio.sleep(LEAST_INTERVAL_S)


async def measure_capacity(generator: VllmGenerator, load: RequestLoad) -> float:
    """Requests a second that the engine finishes until half of them are done, all there at once."""
    served = await Serving(generator, load).run(np.zeros(len(load)).tolist(), None)
    return len(load) / 2 / float(np.median(served.finished_s))


@asynccontextmanager
async def start_generator() -> AsyncIterator[VllmGenerator]:
    config = load_config()
    pair = GeneratorAlone(find_pair("bundled", config), config)
    await pair.start()
    try:
        yield pair.generator
    finally:
        await pair.stop()


async def measure(asked: argparse.Namespace, kept: Journal[Any, Cell]) -> None:
    rates = [*asked.rates, math.inf]
    policies = [name for name in NAMES if name in asked.policies]
    total = len(asked.workloads) * asked.seeds * len(rates) * len(policies)
    async with start_generator() as generator:
        with show_bar("serving", total, unit="loads") as advance:
            for seed, workload in itertools.product(range(asked.seeds), asked.workloads):
                load = draw_load(workload, asked.requests, seed, shrink=SHRINK)
                rivals = Rivals(load)
                capacity = await measure_capacity(generator, load)
                for at, rate in enumerate(rates):
                    name = BATCH if rate == math.inf else f"{rate:g}"
                    for policy in rotate(policies, seed * len(rates) + at):
                        if (workload, seed, name, policy) not in kept.records:
                            arrived_s = load.draw_arrivals(rate * capacity)
                            order = rivals.order(policy, arrived_s, BATCH_SIZE)
                            used = None if policy == "fcfs" else order
                            served = await Serving(generator, load).run(arrived_s.tolist(), used)
                            kept.append(
                                Cell(
                                    workload=workload,
                                    seed=seed,
                                    rate=name,
                                    policy=policy,
                                    figures=describe(served) | {"capacity": capacity},
                                )
                            )
                        advance(1)


def describe(timings: Timings) -> dict[str, float]:
    soonest = np.sort(timings.finished_s)[int(np.ceil(0.3 * len(timings) - 1e-9)) - 1]
    return {
        "per_token_s": float(timings.per_token_s.mean()),
        "per_token_p90_s": float(np.quantile(timings.per_token_s, 0.9)),
        "ttft_s": float(timings.ttft_s.mean()),
        "latency_s": float(timings.latency_s.mean()),
        "longest_wait_s": float(timings.wait_s.max()),
        BATCH_FIGURE: float(soonest - timings.arrived_s.min()),
        "order_tau": compute_order_quality(timings),
    }


def summarize_rate(
    rate: str, by_seed: Mapping[int, Mapping[str, Mapping[str, Mapping[str, float]]]]
) -> dict[str, Any]:
    """Means over seeds by policy, and paired ratios over FCFS and over the better point predictor.

    The better one is chosen on the same seeds, which favours it.
    """
    policies = list(next(iter(by_seed.values()))[rate])
    names = (BATCH_FIGURE,) if rate == BATCH else FIGURES
    values = {
        figure: {p: {s: rows[rate][p][figure] for s, rows in by_seed.items()} for p in policies}
        for figure in (*names, "longest_wait_s", "order_tau")
    }
    points = [p for p in POINT_RIVALS if p in policies]
    rivals = {"fcfs": dict.fromkeys(names, "fcfs")} if "fcfs" in policies else {}
    if points:
        rivals["best_point"] = {
            figure: min(points, key=lambda p: mean(list(values[figure][p].values())))
            for figure in names
        }
    found = {}
    for policy in policies:
        row = {figure: estimate_mean(values[figure][policy]).to_json() for figure in values}
        for name, by_figure in rivals.items():
            for figure, rival in by_figure.items():
                ratio = compare_paired(values[figure][policy], values[figure][rival])
                row[f"{figure}_over_{name}"] = ratio.to_json()
        found[policy] = row
    return {"best_point": rivals.get("best_point", {}), "policies": found}


def print_tables(workload: str, about: Mapping[str, Any], rates: Mapping[str, Any]) -> str:
    """One table of ratios over FCFS and over the best point predictor for each rate."""
    tables = []
    for rate, found in rates.items():
        figures = (BATCH_FIGURE,) if rate == BATCH else ("per_token_s", "ttft_s")
        head = ["policy"]
        for figure in figures:
            head += [figure.removesuffix("_s"), "over fcfs", "over best point"]
        lines = []
        for policy, row in found["policies"].items():
            line = [policy]
            for figure in figures:
                line.append(f"{row[figure]['value']:.3f} s")
                line += [
                    _format_ratio(row.get(f"{figure}_over_{n}")) for n in ("fcfs", "best_point")
                ]
            line += [f"{row['longest_wait_s']['value']:.0f} s", f"{row['order_tau']['value']:.2f}"]
            lines.append(line)
        title = f"{workload}, {rate if rate == BATCH else f'{rate} of what the engine serves'}"
        tables.append(format_table([*head, "longest wait", "tau"], lines, title))
    return "\n\n".join([f"## {workload}\n\n{json.dumps(about)}", *tables])


def _format_ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def group_complete(cells: Sequence[Cell]) -> dict[int, dict[str, dict[str, dict[str, float]]]]:
    """Figures by seed, rate and policy, of the seeds that have as many as any other."""
    by_seed: dict[int, dict[str, dict[str, dict[str, float]]]] = {}
    for cell in cells:
        rows = by_seed.setdefault(cell.seed, {})
        rows.setdefault(cell.rate, {})[cell.policy] = cell.figures
    sizes = Counter(cell.seed for cell in cells)
    most = max(sizes.values())
    return {seed: rows for seed, rows in by_seed.items() if sizes[seed] == most}


def tell(asked: argparse.Namespace, cells: Sequence[Cell]) -> None:
    figures: dict[str, Any] = {}
    pages = []
    for workload in dict.fromkeys(cell.workload for cell in cells):
        ours = [cell for cell in cells if cell.workload == workload]
        by_seed = group_complete(ours)
        if not by_seed:
            continue
        load = draw_load(workload, asked.requests, 0, shrink=SHRINK)
        about = {
            "about": WORKLOADS[workload],
            "dispersion": load.dispersion.to_json(),
            "capacity_per_s": round(float(np.mean([cell.figures["capacity"] for cell in ours])), 2),
        }
        figures[workload] = {
            **about,
            "rates": {rate: summarize_rate(rate, by_seed) for rate in next(iter(by_seed.values()))},
        }
        pages.append(print_tables(workload, about, figures[workload]["rates"]))
    (OUTPUT / "real_requests.md").write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    print("\n\n".join(pages))
    report(requests=asked.requests, seeds=asked.seeds, batch=BATCH_SIZE, workloads=figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=["cv 1.09"])
    parser.add_argument("--policies", nargs="+", choices=NAMES, default=list(NAMES))
    asked = parse_arguments(parser, requests=10, seeds=2, rates=[2.0])
    settings = {"requests": asked.requests, "batch": BATCH_SIZE, "shrink": SHRINK}
    path = OUTPUT / "real_requests.jsonl"
    with Journal(path, settings, Cell.from_json, key=lambda cell: cell.key) as kept:
        asyncio.run(measure(asked, kept))
        cells = list(kept.records.values())
    tell(asked, cells)


if __name__ == "__main__":
    main()
