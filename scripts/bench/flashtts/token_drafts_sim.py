"""What do drafted tokens gain on a simulated 4090?

    python -m scripts.bench.flashtts.token_drafts_sim [--n 4 16 64 256] [--problems 8]
        [--strategy beam|best_of_n] [--overheads low typical high] [--others] [--charged]

Searches with a 1.5B generator and a 1.5B verifier on 90 % of the card, whose paths are spliced of 8
real samples of their problem (`scripts.lab.benchmark.lengths`), with all optimizations but
lookahead, and then with `token_drafts` too. A drafted row costs its FLOPs and nothing on the host.
With `--charged` it costs as much there as a sequence, which is too much: only drawn tokens are
checked and sent.

Of more than 8 paths some read alike, which real ones would not. With `--others` a path is spliced
of the samples of n / 8 problems. Then no more paths read alike than at n = 8, but a path repeats
fewer of its siblings' words than real ones do. What is true should lie between.

A path's tokens a step are counted over requests, without tokens that were drafted for a next step.
A ratio is the mean over problems, one run each, with its 95 % bootstrap interval. Every tree is
compared with that of the other way. The last line is JSON.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from statistics import fmean

from scripts.bench.daemon import report
from scripts.bench.flashtts.study import build_cell, format_table, run_in_parallel
from scripts.lab.benchmark.devices import OVERHEADS
from scripts.lab.benchmark.ladder import BEST, Rung
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.benchmark.virtual_run import VirtualRun, simulate_run
from scripts.lab.sim.model import StepTrace
from scripts.lab.sim.scheduler import Slice
from scripts.lab.statistics import interval

SAMPLES = 8
Task = tuple[int, str, int]  # n, overheads, number of the problem
Figures = dict[str, float]


def join_problems(trace: StepTrace, row: int, count: int) -> StepTrace:
    """Let the paths of a row be spliced of the samples of `count` problems, its own the first."""
    joined = [trace.rows[(row + i) % len(trace.rows)] for i in range(count)]
    rows = list(trace.rows)
    rows[row] = replace(
        rows[row],
        step_tokens=tuple(chain.from_iterable(one.step_tokens for one in joined)),
        texts=tuple(chain.from_iterable(one.texts for one in joined)),
    )
    return StepTrace(tuple(rows))


def run_search(bench: Bench, row: int, token_drafts: bool) -> tuple[VirtualRun, Figures]:
    steps = rows = 0

    def note(engine: str, batch: tuple[Slice, ...], took_s: float) -> None:
        nonlocal steps, rows
        if engine == "generator":
            steps += 1
            rows += sum(_draws_token(work) for work in batch if not work.sequence.is_draft)

    rung = Rung(
        name="", about="", optimizations=replace(BEST.optimizations, token_drafts=token_drafts)
    )
    run = simulate_run(rung, bench.setup, bench.trace, bench.spec(row), on_step=note)
    tokens = run.tree.committed_tokens - run.speculation.kept_tokens
    return run, {"engine_steps": steps, "tokens_a_step": tokens / rows}


def _draws_token(work: Slice) -> bool:
    sequence = work.sequence
    return work.context + work.new == len(sequence.tokens) + len(sequence.draft)


def run_task(strategy: str, others: bool, charged: bool, problems: int, task: Task) -> Figures:
    n, overheads, number = task
    bench = build_cell(
        "1.5B+1.5B",
        "gsm8k",
        n,
        problems=problems,
        overheads=OVERHEADS[overheads],
        share=0.9,
        strategy=strategy,
    )
    if charged:
        device = replace(bench.setup.device, draft_s=bench.setup.device.sequence_s)
        bench = replace(bench, setup=replace(bench.setup, device=device))
    row = bench.rows[number]
    if others:
        bench = replace(bench, trace=join_problems(bench.trace, row, max(1, n // SAMPLES)))
    (plain, before), (drafted, after) = (run_search(bench, row, on) for on in (False, True))
    counts = drafted.token_drafts
    return {
        "generator_s_without": plain.generate_s,
        "generator_s_with": drafted.generate_s,
        "generator_ratio": plain.generate_s / drafted.generate_s,
        "whole_ratio": plain.seconds / drafted.seconds,
        "engine_steps_ratio": before["engine_steps"] / after["engine_steps"],
        "tokens_a_step_without": before["tokens_a_step"],
        "tokens_a_step_with": after["tokens_a_step"],
        "rows_a_drafted_step": counts["drafted_tokens"] / max(1, counts["drafted_steps"]),
        "accepted": counts["accepted_tokens"] / max(1, counts["drafted_tokens"]),
        "same_trees": plain.tree == drafted.tree,
    }


def summarize(runs: Sequence[Figures]) -> Figures:
    found = {name: fmean(run[name] for run in runs) for name in runs[0]}
    low, high = interval([run["generator_ratio"] for run in runs])
    return {**found, "generator_ratio_low": low, "generator_ratio_high": high}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--strategy", choices=("beam", "best_of_n"), default="beam")
    parser.add_argument("--overheads", nargs="+", choices=OVERHEADS, default=list(OVERHEADS))
    parser.add_argument(
        "--others", action="store_true", help="splice paths of the samples of n / 8 problems"
    )
    parser.add_argument(
        "--charged", action="store_true", help="a drafted row costs as much as a sequence"
    )
    return parser.parse_args()


def main() -> None:
    asked = parse_arguments()
    tasks: list[Task] = list(product(asked.n, asked.overheads, range(asked.problems)))
    ways = asked.strategy, asked.others, asked.charged, asked.problems
    work = partial(run_task, *ways)
    name = "-".join(("token-drafts", *map(str, ways)))
    found: dict[tuple[int, str], list[Figures]] = {}
    for task, figures in run_in_parallel(name, work, tasks):
        found.setdefault(task[:2], []).append(figures)
    cells = {cell: summarize(runs) for cell, runs in found.items()}
    head = (
        "n",
        "overheads",
        "generator s without",
        "with",
        "ratio",
        "whole search",
        "tokens a step",
    )
    rows = [
        (
            *cell,
            f"{row['generator_s_without']:.2f}",
            f"{row['generator_s_with']:.2f}",
            f"{row['generator_ratio']:.2f} "
            f"({row['generator_ratio_low']:.2f}-{row['generator_ratio_high']:.2f})",
            f"{row['whole_ratio']:.2f}",
            f"{row['tokens_a_step_with']:.2f}",
        )
        for cell, row in cells.items()
    ]
    print(format_table(head, rows, f"{asked.strategy}, simulated RTX 4090"))
    report(
        simulated=True,
        **vars(asked),
        cells=[{"n": n, "of": overheads, **row} for (n, overheads), row in cells.items()],
    )


if __name__ == "__main__":
    main()
