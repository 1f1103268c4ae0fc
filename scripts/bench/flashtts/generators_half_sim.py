"""What do drafts of tokens, drafts of steps and early commit gain on a simulated 4090?

    python -m scripts.bench.flashtts.generators_half_sim [--n 4 16 64 256] [--problems 8]
        [--pair 1.5B+7B] [--strategy beam|best_of_n] [--overheads low typical high]
        [--ways off all] [--others] [--charged] [--earlier 8]

Searches on 90 % of the card, whose paths are spliced of 8 real samples of their problem by a 1.5B
model (`scripts.lab.benchmark.lengths`). Each problem runs in all ways of
`WAYS`: the stock loop, which scores whole paths, a verifier with a prefix cache and nothing else,
all of FlashEdge but the generator's half, each of its parts, and all of it. Every tree is compared
with that of the first way.

A drafted row costs its FLOPs and nothing on the host. With `--charged` it costs as much there as a
sequence, which is too much: only drawn tokens are checked and sent. Of more than 8 paths some read
alike, which real ones would not. With `--others` a path is spliced of the samples of n / 8
problems. Then no more paths read alike than at n = 8, but a path repeats fewer of its siblings'
words than real ones do. What is true should lie between.

Before each run the engines have run the same search for so many other problems of the client
(`--earlier`): from their texts tokens are drafted too, and rates and costs are known. 0: an engine
that has just started.

Figures are means over problems. A ratio is a way's over that of `off`, with its 95 % bootstrap
interval. The last line is JSON.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from statistics import fmean

from flashedge.optimizations import Optimizations
from scripts.bench import smoke
from scripts.bench.daemon import report
from scripts.bench.flashtts.study import PAIRS, build_cell, format_table, run_in_parallel
from scripts.lab.benchmark.devices import OVERHEADS
from scripts.lab.benchmark.ladder import BEST, RUNGS, SUFFIX, Rung
from scripts.lab.benchmark.simulate import Bench
from scripts.lab.sim.model import StepTrace
from scripts.lab.statistics import interval

SAMPLES = 8
OFF = replace(BEST.optimizations, score_once=True, speculation=False, token_drafts=False)
EARLY = {"speculation": True, "early_scores": True, "early_commit": True}
WAYS: Mapping[str, Optimizations] = {
    "stock": RUNGS[0].optimizations,
    "suffix": SUFFIX.optimizations,
    "off": OFF,
    "tokens": replace(OFF, token_drafts=True),
    "steps": replace(OFF, speculation=True),
    "commit": replace(OFF, **EARLY),
    "default": replace(OFF, token_drafts=True, speculation=True),
    "all": replace(OFF, token_drafts=True, **EARLY),
}
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


def build_bench(n: int, overheads: str, number: int, asked: argparse.Namespace) -> Bench:
    bench = build_cell(
        asked.pair,
        "gsm8k",
        n,
        problems=asked.problems,
        overheads=OVERHEADS[overheads],
        share=0.9,
        strategy=asked.strategy,
    )
    if asked.charged:
        device = replace(bench.setup.device, draft_s=bench.setup.device.sequence_s)
        bench = replace(bench, setup=replace(bench.setup, device=device))
    if asked.others:
        joined = join_problems(bench.trace, bench.rows[number], max(1, n // SAMPLES))
        bench = replace(bench, trace=joined)
    return bench


def run_task(asked: argparse.Namespace, task: Task) -> dict[str, Figures]:
    bench = build_bench(*task, asked)
    row, found, tree = bench.rows[task[2]], {}, None
    rows, own = len(bench.trace.rows), max(1, task[0] // SAMPLES) if asked.others else 1
    if asked.earlier + own > rows:
        raise SystemExit(f"--earlier: at most {rows - own}, the trace has {rows} problems")
    earlier = [(row - 1 - i) % rows for i in range(asked.earlier)]
    for way in asked.ways:
        run = bench.run(Rung(name=way, about="", optimizations=WAYS[way]), row, earlier=earlier)
        tree = tree or run.tree
        if run.tree != tree:
            raise SystemExit(f"{task}: the tree of {way!r} differs")
        found[way] = {
            "generator_s": run.generate_s,
            "verifier_s": run.verify_s,
            "seconds": run.seconds,
            "goodput": run.goodput,
            "tokens": run.tree.committed_tokens,
            **run.token_drafts,
            "steps_drawn": run.speculation.drawn_tokens,
            "steps_kept": run.speculation.kept_tokens,
            "early_commits": run.speculation.early_commits,
            "certain_tokens": run.speculation.certain_tokens,
        }
    return found


def summarize(runs: Sequence[dict[str, Figures]]) -> dict[str, Figures]:
    """The means of each way, and its ratios to `off`."""
    ways = {}
    for way in runs[0]:
        mine = [run[way] for run in runs]
        ways[way] = {name: fmean(one[name] for one in mine) for name in mine[0]}
        base = [run["off"] for run in runs]
        for name in ("generator_s", "seconds", "goodput"):
            ratios = [one[name] / other[name] for one, other in zip(mine, base, strict=True)]
            low, high = interval(ratios)
            ways[way] |= {f"{name}_ratio": fmean(ratios), f"{name}_low": low, f"{name}_high": high}
    return ways


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--pair", choices=PAIRS, default="1.5B+1.5B")
    parser.add_argument("--strategy", choices=("beam", "best_of_n"), default="beam")
    parser.add_argument("--overheads", nargs="+", choices=OVERHEADS, default=list(OVERHEADS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--others", action="store_true", help="splice paths of the samples of n / 8 problems"
    )
    parser.add_argument(
        "--charged", action="store_true", help="a drafted row costs as much as a sequence"
    )
    parser.add_argument(
        "--earlier", type=int, default=8, help="problems that the client has asked before"
    )
    asked = smoke.parse_arguments(parser, n=[4], problems=1, overheads=["typical"], earlier=1)
    asked.ways = [way for way in WAYS if way in {*asked.ways, "off"}]
    return asked


def main() -> None:
    asked = parse_arguments()
    tasks: list[Task] = list(product(asked.n, asked.overheads, range(asked.problems)))
    kept = (asked.pair, asked.strategy, asked.others, asked.charged, asked.problems, asked.earlier)
    kept = (*kept, *asked.ways)
    name = "-".join(("generators-half", *map(str, kept)))
    found: dict[tuple[int, str], list[dict[str, Figures]]] = {}
    for task, figures in run_in_parallel(name, partial(run_task, asked), tasks):
        found.setdefault(task[:2], []).append(figures)
    cells = {cell: summarize(runs) for cell, runs in found.items()}
    head = ("n", "overheads", "way", "generator s", "of off", "whole s", "goodput", "drawn ahead")
    rows = [
        (
            *cell,
            way,
            f"{row['generator_s']:.2f}",
            f"{row['generator_s_ratio']:.2f} "
            f"({row['generator_s_low']:.2f}-{row['generator_s_high']:.2f})",
            f"{row['seconds']:.2f}",
            f"{row['goodput']:.1f}",
            f"{row['accepted_tokens']:.0f} + {row['steps_kept']:.0f} of {row['tokens']:.0f}",
        )
        for cell, ways in cells.items()
        for way, row in ways.items()
    ]
    print(format_table(head, rows, f"{asked.pair}, {asked.strategy}, simulated RTX 4090"))
    report(
        simulated=True,
        **vars(asked),
        cells=[{"n": n, "of": overheads, **ways} for (n, overheads), ways in cells.items()],
    )


if __name__ == "__main__":
    main()
