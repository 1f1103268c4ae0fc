"""Does the tail weight of TIE pay with real lengths, and from which dispersion on?

    python -m scripts.bench.scheduling.real_lengths [--samples FILE --tokenizer FOLDER]

Requests ask for one answer each. Its length is that of a real sample: of 100 problems of MATH
(`scripts/lab/benchmark/step_lengths.jsonl`) or of the problems of --samples (`lengths.workload`).
Half of the problems were asked before, and requests ask the others. Every second sample of these is
an answer; what is known of them depends on the predictor:

| name | what it says |
|---|---|
| history | what the daemon predicts of a prompt that it has not seen |
| seen | what it predicts once the prompt's other samples have ended |
| paper | the truth with the errors of the paper's text predictor |
| true | what fits the prompt's own samples, those to come among them |

Real samples of one problem differ little, so --factors multiply their spread (`spread_samples`).

Simulated: so many requests at once, each of which gains a token a step; a step always takes the
same time, prefill takes none, memory never ends. Rates are multiples of what such an engine
finishes. Ratios are paired by seed, with 95 % intervals over the seeds. The last line is JSON.
"""

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flashedge.scheduling.lengths.distribution import Floats
from flashedge.scheduling.lengths.history import SCALE, HistoryPredictor
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import format_table
from scripts.bench.lengths.workload import SampledWorkload, Samples, read_samples, spread_samples
from scripts.bench.scheduling.request_orders import (
    RequestLoad,
    Rivals,
    WaitingOrder,
    sort_waiting,
    summarize_parameters,
)
from scripts.bench.scheduling.study import compare_paired
from scripts.bench.smoke import SMALL_SAMPLES, parse_arguments
from scripts.lab.benchmark.lengths import MAX_TOKENS, load_trace
from scripts.lab.benchmark.load.timings import Timings
from scripts.lab.distributions import LEAST_SPREAD, Dispersion, Integers, measure_dispersion

PREDICTORS = ("history", "seen", "paper", "true")
POLICIES = ("fcfs", "ssjf", "sept", "tie", "per_token")
FIGURES = ("latency", "p90", "per_token")
STEP_S = 0.01
Cell = dict[str, float]


def serve_in_steps(
    load: RequestLoad, arrived_s: Floats, order: WaitingOrder, batch: int
) -> Timings:
    """Serve the requests, `batch` of them at once, each until its end."""
    count, now_s, come = len(load), 0.0, 0
    waiting: list[int] = []
    ends: list[tuple[float, int]] = []
    started_s = np.zeros(count)
    while come < count or waiting:
        while come < count and arrived_s[come] <= now_s:
            waiting.append(come)
            come += 1
        if waiting and len(ends) < batch:
            first = int(sort_waiting(order, np.array(waiting), now_s)[0])
            waiting.remove(first)
            started_s[first] = now_s
            heapq.heappush(ends, (now_s + STEP_S * float(load.output_tokens[first]), first))
        elif come < count and (len(ends) < batch or arrived_s[come] < ends[0][0]):
            now_s = float(arrived_s[come])
        else:
            now_s, _ = heapq.heappop(ends)
        while ends and ends[0][0] <= now_s:
            heapq.heappop(ends)
    waits_s = started_s - arrived_s
    latency_s = waits_s + STEP_S * load.output_tokens
    return Timings(arrived_s, waits_s, waits_s + STEP_S, latency_s, load.output_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Problems:
    """The problems that requests ask, and what is known of the lengths of their answers. The arrays
    are (problems,)."""

    answers: Sequence[Sequence[int]]
    """Tokens of each problem's answers, of which a request gets one."""
    prompt_tokens: Integers
    mu: Floats
    sigma: Floats
    """What fits all samples of the problem."""
    predicted: tuple[Floats, Floats] | None
    """See `RequestLoad`."""
    dispersion: Dispersion

    def draw_load(self, count: int, seed: int) -> RequestLoad:
        draw = np.random.default_rng(seed)
        at = draw.integers(len(self.answers), size=count)
        mu, sigma, said = self.mu[at], self.sigma[at], self.predicted
        return RequestLoad(
            seed=seed,
            max_tokens=MAX_TOKENS,
            prompt_tokens=self.prompt_tokens[at],
            output_tokens=np.array([draw.choice(self.answers[i]) for i in at]),
            mu=mu,
            sigma=sigma,
            trained_on=summarize_parameters(mu, sigma),
            dispersion=self.dispersion,
            predicted=None if said is None else (said[0][at], said[1][at]),
        )


def predict_lengths(samples: Sequence[Samples], predictor: str) -> Problems:
    """Let the first half of the problems run, and predict those of the other half."""
    middle, workload = len(samples) // 2, SampledWorkload(samples)
    asked = samples[middle:]
    logs = [np.log(one.tokens) for one in asked]
    true = (
        np.array([one.mean() for one in logs]),
        np.maximum(LEAST_SPREAD, [SCALE * one.std(ddof=1) for one in logs]),
    )
    predicted = None if predictor == "paper" else true
    if predictor in ("history", "seen"):
        history = HistoryPredictor()
        for finished in workload.make_many(range(len(samples) if predictor == "seen" else middle)):
            history.learn(finished)
        runs = workload.make_many(range(middle, len(samples)))
        found = [said for one in runs if (said := history.predict(one.request)) is not None]
        predicted = np.array([one.mu for one in found]), np.array([one.sigma for one in found])
    return Problems(
        answers=[one.lengths.tokens for one in workload.make_many(range(middle, len(samples)), 1)],
        prompt_tokens=np.array([len(one.prompt_ids) for one in asked]),
        mu=true[0],
        sigma=true[1],
        predicted=predicted,
        dispersion=measure_dispersion([np.array(one.tokens) for one in asked], MAX_TOKENS),
    )


def measure(load: RequestLoad, rates: Sequence[float], batch: int) -> dict[float, dict[str, Cell]]:
    """Figures by rate and policy."""
    rivals = Rivals(load)
    capacity = batch / (STEP_S * float(load.output_tokens.mean()))
    found: dict[float, dict[str, Cell]] = {}
    for rate, policy in product(rates, POLICIES):
        arrived_s = load.draw_arrivals(rate * capacity)
        served = serve_in_steps(load, arrived_s, rivals.order(policy, arrived_s, batch), batch)
        found.setdefault(rate, {})[policy] = {
            "latency": float(served.latency_s.mean()),
            "p90": float(np.quantile(served.latency_s, 0.9)),
            "per_token": float(served.per_token_s.mean()),
        }
    return found


def summarize(by_seed: Sequence[dict[str, Cell]]) -> dict[str, Any]:
    """Of each figure the ratio of two orders over the seeds: how many times lower ours is."""

    def compare(figure: str, ours: str, theirs: str) -> dict[str, float]:
        mine, other = (
            {seed: cells[name][figure] for seed, cells in enumerate(by_seed)}
            for name in (ours, theirs)
        )
        return compare_paired(mine, other).to_json()

    pairs = [("sept", "fcfs"), ("tie", "sept"), ("ssjf", "sept"), ("per_token", "sept")]
    return {
        figure: {f"{ours} over {theirs}": compare(figure, ours, theirs) for ours, theirs in pairs}
        for figure in FIGURES
    }


def read_problems(path: Path | None, tokenizer: Path | None) -> list[Samples]:
    if path is not None:
        from scripts.bench.lengths.prediction_error import build_prompt_encoder  # slow to import

        return read_samples(path, build_prompt_encoder(tokenizer))
    return [
        Samples(f"problem {at}", (0,) * row.prompt_tokens, tuple(map(sum, row.step_tokens)))
        for at, row in enumerate(load_trace("math").rows)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=Path, help="prompts and lengths of their answers")
    parser.add_argument("--tokenizer", type=Path, help="folder, for --samples")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0, 3.0, 6.0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.9, 1.5, 3.0])
    parser.add_argument("--predictors", nargs="+", choices=PREDICTORS, default=list(PREDICTORS))
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=8)
    asked = parse_arguments(
        parser, **SMALL_SAMPLES, factors=[1.0], rates=[1.5], requests=40, seeds=2
    )
    problems = read_problems(asked.samples, asked.tokenizer)
    lines, figures = [], []
    for factor, predictor in product(asked.factors, asked.predictors):
        samples = spread_samples(problems, factor, MAX_TOKENS)
        known = predict_lengths(samples, predictor)
        loads = [known.draw_load(asked.requests, seed) for seed in range(asked.seeds)]
        cells = [measure(load, asked.rates, asked.batch) for load in loads]
        spread = known.dispersion.to_json()
        for rate in asked.rates:
            found = summarize([one[rate] for one in cells])
            about = {"factor": factor, "predictor": predictor, "rate": rate}
            figures.append({**about, "dispersion": spread, **found})
            ratios = [one for figure in FIGURES for one in found[figure].values()]
            shown = [f"{r['value']:.2f} ({r['low']:.2f}-{r['high']:.2f})" for r in ratios]
            lines.append((f"{spread['within_cv']:.2f}", predictor, f"{rate:g}", *shown))
    columns = [f"{figure}: {name}" for figure in FIGURES for name in figures[0][figure]]
    print(format_table(("CV", "predictor", "rate", *columns), lines))
    report(
        problems=len(problems),
        requests=asked.requests,
        batch=asked.batch,
        seeds=asked.seeds,
        rows=figures,
    )


if __name__ == "__main__":
    main()
