"""How long does it take to score 1,000 waiting requests anew?

    python -m scripts.bench.lengths.rescore [--requests 1000] [--times 2000]

λ follows the queue and waiting requests decay, so all are scored again and again. The hypothesis:
less than 1 ms for 1,000 of them. A figure is the median of `--times` calls, with the 99th
percentile: of the scores alone, of scores and the order, and of the figures of one new request
(quadrature, and the paper's 10,000 samples). The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np

from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.tail import compute_figures, sample_figures
from flashedge.scheduling.lengths.tie import MEASURED_DECAY
from flashedge.scheduling.programs.board import ProgramBoard, Rules
from flashedge.scheduling.programs.policies import Pressure, TailInflated
from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.programs.table import ProgramTable
from flashedge.scheduling.programs.work import estimate_work
from scripts.bench.daemon import report

MAX_TOKENS = 4096
MAX_BATCH = 64
FIGURES = 200
"""Times that the figures of one request are computed."""


def build_board(programs: int) -> ProgramBoard:
    """Build a board of programs with log-t lengths, which arrived one a second."""
    draw, board = np.random.default_rng(0), ProgramBoard(Rules(policy=TailInflated()))
    for index in range(programs):
        lengths = LogT(float(draw.uniform(3, 7)), float(draw.uniform(0.05, 1)))
        program = Program(
            key=f"program-{index}",
            arrived_s=float(index),
            max_tokens=MAX_TOKENS,
            lengths=lengths,
        )
        board.add(program, estimate_work(program))
    return board


def time_calls(call: Callable[[int], object], times: int) -> dict[str, float]:
    """Time a call, given its number. Returns milliseconds."""
    taken_ms = []
    for number in range(-times // 10, times):  # the first tenth warms up
        started = time.perf_counter()
        call(number)
        if number >= 0:
            taken_ms.append(1e3 * (time.perf_counter() - started))
    return {
        "median_ms": round(float(np.median(taken_ms)), 4),
        "p99_ms": round(float(np.quantile(taken_ms, 0.99)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--times", type=int, default=2000)
    asked = parser.parse_args()
    board, load = build_board(asked.requests), os.getloadavg()[0]
    programs = board.programs
    works = {program.key: estimate_work(program) for program in programs}
    policy = TailInflated(decay=MEASURED_DECAY)

    def score(number: int) -> object:
        table = ProgramTable.build(programs, works, float(asked.requests + number))
        return policy.score(table, Pressure(waiting=number % 100, max_batch=MAX_BATCH))

    def order(number: int) -> object:
        return board.order(float(asked.requests + number), MAX_BATCH)

    request = LogT(5.0, 0.4)
    report(
        requests=asked.requests,
        times=asked.times,
        scores=time_calls(score, asked.times),
        scores_and_order=time_calls(order, asked.times),
        figures_of_one=time_calls(lambda _: compute_figures(request, MAX_TOKENS), FIGURES),
        samples_of_one=time_calls(
            lambda seed: sample_figures(request, MAX_TOKENS, seed=abs(seed)), FIGURES
        ),
        load=[load, os.getloadavg()[0]],
    )


if __name__ == "__main__":
    main()
