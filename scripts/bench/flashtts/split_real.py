"""How far is the chosen KV split from the best of a brute-force sweep, on real engines?

The generator's share of a tight memory is swept. A beam search of the same problems runs under each
share and under the split that the KV manager chooses, A B A B: every share once, the choice once,
and again. Seconds are medians over problems and rounds; each search starts without KV. A setting
counts if the worst share takes at least 1.5 times as long as the best.

Run `flashedge profile` first, since its curves decide. `curves` in the output says what was used.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Callable
from statistics import median

from flashedge.optimizations import Optimizations
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.kv.split import KvSplit
from flashedge.scheduling.kv.stages import Workload
from flashedge.types import Problem
from scripts.bench.daemon import read_problems, report
from scripts.bench.flashtts.kv_rig import Rig, TimedSearch, rig
from scripts.bench.smoke import parse_arguments

CHOSEN = "chosen"
MIB = 1 << 20


async def measure(kv_bytes: int, n: int, count: int, shares: int, rounds: int) -> None:
    specs = [
        Request(problem=Problem.from_text(p["problem"]), pair="bundled", n=n, seed=seed)
        for seed, p in enumerate(read_problems("heldout", count))
    ]
    async with rig(kv_bytes) as here:
        way = Optimizations.from_features(here.config.features, separate_processors=False)
        splits = await sweep_shares(here, shares)
        seconds: dict[str, list[float]] = defaultdict(list)
        curves: object = None
        moves = 0
        for number in range(rounds):
            for name, forced in {**splits, CHOSEN: None}.items():
                async with here.run_manager(forced) as manager:
                    for index, spec in enumerate(specs):
                        timed = await here.search(spec, way, manager)
                        if number == index == 0:
                            print_search(name, timed)
                        seconds[name].append(timed.seconds)
                        if name == CHOSEN:
                            curves, moves = (
                                timed.record["curves"],
                                moves + timed.record["split_moves"],
                            )
    medians = {name: median(found) for name, found in seconds.items()}
    chosen_s = medians.pop(CHOSEN)
    best, worst = min(medians.values()), max(medians.values())
    report(
        kv_mib=kv_bytes / MIB,
        n=n,
        problems=count,
        rounds=rounds,
        curves=curves,
        swept_s={name: round(s, 3) for name, s in medians.items()},
        chosen_s=round(chosen_s, 3),
        chosen_moves=moves,
        worst_over_best=round(worst / best, 3),
        chosen_over_best=round(chosen_s / best, 3),
        counts=worst >= 1.5 * best,
    )


async def sweep_shares(here: Rig, count: int) -> dict[str, Callable[[Workload | None], KvSplit]]:
    """Fixed shares, evenly spaced between the least that each engine needs."""
    generator, verifier = here.pair.generator, here.pair.verifier
    least = [
        (-(-e.max_model_len // (await e.view()).block_tokens) + 1) * (await e.view()).block_bytes
        for e in (generator, verifier)
    ]
    room = here.kv_bytes - sum(least)
    if room < 0:
        raise SystemExit(f"at least {-(-sum(least) // MIB)} MiB are needed")
    sizes = [least[0] + room * i // (count - 1) for i in range(count)]
    return {f"{size / MIB:.1f} MiB": fix_share(here, size) for size in sizes}


def fix_share(here: Rig, generator_bytes: int) -> Callable[[Workload | None], KvSplit]:
    split = KvSplit(
        generator_bytes=generator_bytes,
        verifier_bytes=here.kv_bytes - generator_bytes,
        decode_batch=1 << 30,
        prefill_batch=1 << 30,
        generate_s=0.0,
        verify_s=0.0,
    )
    return lambda load: split


def print_search(name: str, timed: TimedSearch) -> None:
    print(
        f"{name}: {timed.seconds:.2f} s (generator {timed.generate_s:.2f}, "
        f"verifier {timed.verify_s:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=24)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--shares", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    given = parse_arguments(parser, mib=96, n=4, problems=1, shares=2, rounds=1)
    asyncio.run(measure(given.mib * MIB, given.n, given.problems, given.shares, given.rounds))


if __name__ == "__main__":
    main()
