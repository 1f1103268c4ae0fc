"""What do drafts of steps and of tokens gain on real vLLM?

    python -m scripts.bench.flashtts.speculation_real [--n 1 4 16 64] [--problems 100] [--tight N]

A level lasts as long as its slowest beam, and an engine step of a small model takes nearly as long
for one row as for a few. Finished beams that go on meanwhile give the next level's steps a draft
(drafts of steps, arXiv 2509.00195). What a path says next often stands in the text of its tree
already: then several of its tokens can be drawn in a step (drafts of tokens, ours).

Beam searches (4 children) over held-out problems with the bundled pair, in four ways: off, steps,
tokens, both. Each problem and seed in every way, one after the other (A B A B …), in an order that
moves on by one from problem to problem and turns; before each search both prefix caches and the
verifier's memory of scores are emptied. Tokens are drafted from the client's earlier texts too:
each way and repeat has a client of its own. The median of repeats counts. KV ample, and tight
(`--tight` tokens for the generator; none: left out).

Reported per way, as ratios to off: latency (sum of the medians of seconds), generating and
verifying apart, goodput (mean tokens of a completed path / mean seconds to its completion, arXiv
2509.00195 §6.1; mean over problems); the share of steps that began with a draft; the share of
drafted tokens that were used; the engine's counters. Every tree is compared with that of off. The
machine's load is reported too: on a busy machine seconds mean little. The last line is JSON.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from statistics import mean, median

from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from scripts.bench import smoke
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import Rig, TimedSearch, rig
from scripts.bench.turns import rotate

WAYS = {
    "off": Optimizations(speculation=False, token_drafts=False),
    "steps": Optimizations(token_drafts=False),
    "tokens": Optimizations(speculation=False),
    "both": Optimizations(),
}


async def limit_kv(here: Rig, tokens: int | None) -> None:
    """Bound the generator's KV to so many tokens. None removes the bound."""
    view = await here.pair.generator.view()
    blocks = view.blocks_total if tokens is None else tokens // view.block_tokens
    await here.pair.generator.budget(blocks * view.block_bytes)


Runs = Sequence[Sequence[TimedSearch]]
"""(problems, repeats)"""


def summarize(off: Runs, runs: Runs) -> dict[str, object]:
    """Compare runs with those without speculation."""
    firsts = [repeats[0] for repeats in runs]
    steps = sum(len(run.tree.nodes) - 1 for run in firsts)
    drawn = sum(run.did.drawn_tokens for run in firsts)
    kept = sum(run.did.kept_tokens for run in firsts)
    each = [
        median(r.goodput for r in on) / median(r.goodput for r in base)
        for on, base in zip(runs, off, strict=True)
    ]
    figures = {
        "latency_ratio": _sum_medians(off, "seconds") / _sum_medians(runs, "seconds"),
        "generate_ratio": _sum_medians(off, "generate_s") / _sum_medians(runs, "generate_s"),
        "verify_ratio": _sum_medians(off, "verify_s") / _sum_medians(runs, "verify_s"),
        "goodput_ratio": mean(each),
        "goodput_ratio_median": median(each),
        "seconds": _sum_medians(runs, "seconds"),
        "verify_s": _sum_medians(runs, "verify_s"),
        "steps_drafted_ahead": sum(run.did.kept_steps for run in firsts) / steps,
        "drawn_share": drawn / sum(run.tree.committed_tokens for run in firsts),
        "kept_share": kept / drawn if drawn else 0.0,
        "steps_scored_ahead": sum(run.did.scored_steps for run in firsts) / steps,
    }
    counters = {name: sum(run.counters[name] for run in firsts) for name in firsts[0].counters}
    same = all(run.tree == base[0].tree for on, base in zip(runs, off, strict=True) for run in on)
    return {
        **{name: round(value, 3) for name, value in figures.items()},
        "same_trees": same,
        "counters": counters,
    }


def _sum_medians(runs: Runs, name: str) -> float:
    return float(sum(median(getattr(run, name) for run in repeats) for repeats in runs))


async def measure_ways(
    here: Rig, chosen: Sequence[Problem], n: int, repeats: int, memory: str
) -> dict[str, list[list[TimedSearch]]]:
    """Measure every way. way -> (problems, repeats) runs."""
    runs: dict[str, list[list[TimedSearch]]] = {name: [[] for _ in chosen] for name in WAYS}
    names = list(WAYS)
    await here.search(Request(problem=chosen[0], pair="bundled", n=n, seed=999), WAYS["both"])
    for index, problem in enumerate(chosen):
        spec = Request(problem=problem, pair="bundled", n=n, seed=index)
        order = rotate(names, index)
        for name in (order if index % 2 else order[::-1]) * repeats:
            # A client has asked the problems before this one, each once.
            client = f"{memory}, {name}, n={n}, {len(runs[name][index])}"
            runs[name][index].append(await here.search(spec, WAYS[name], client=client))
    return runs


async def run_benchmark(asked: argparse.Namespace) -> None:
    chosen = [Problem.from_text(row["problem"]) for row in read_problems("heldout", asked.problems)]
    figures: dict[str, object] = {}
    load = os.getloadavg()[0]
    async with rig(512 << 20, state_dir=tempfile.mkdtemp()) as here:
        for memory, tokens in (("ample", None), ("tight", asked.tight)):
            if memory == "tight" and tokens is None:
                continue
            await limit_kv(here, tokens)
            for n in asked.n:
                runs = await measure_ways(here, chosen, n, asked.repeats, memory)
                for name in WAYS:
                    case = f"{memory} n={n} {name}"
                    figures[case] = summarize(runs["off"], runs[name])
                    print(case, figures[case], flush=True)
        await limit_kv(here, None)
        view = await here.pair.generator.view()
        figures["blocks_left"] = view.blocks_used
    report(
        problems=len(chosen),
        repeats=asked.repeats,
        load=[round(load, 1), round(os.getloadavg()[0], 1)],
        figures=figures,
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tight", type=int)
    return smoke.parse_arguments(parser, n=[4], problems=1, repeats=1)


if __name__ == "__main__":
    asyncio.run(run_benchmark(parse_arguments()))
