"""Does scoring with KV reuse give the same bits as whole-path scoring, and what does it save?

    python -m scripts.bench.foundation.verifier_reuse

Suffix scoring computes only the new step of a path and reuses the KV of the steps before it, which
is worth having only if no score changes. The scores of 200 generated paths are compared bit for bit
between the two ways. Then the seconds to score one level of n = 16 and 64 paths are measured in
turn (A B A B). Medians; the last line is JSON.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from flashedge.config import load_config
from flashedge.engine.base import ExtendRequest, ScoreRequest, StepScores
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.search.step_rules import split_steps
from flashedge.types import Problem, Sampling
from scripts.bench.daemon import read_problems, report

PATHS = 200
WIDTHS = (16, 64)
ROUNDS = 2
Scorer = Callable[[ScoreRequest], Awaitable[StepScores]]


async def measure() -> None:
    with tempfile.TemporaryDirectory() as home:
        config = load_config(environ={"FLASHEDGE_HOME": home})
        pair = VllmPair(find_pair("bundled", config), config)
        await pair.start()
        try:
            paths = await sample_paths(pair)
            equal, steps = await compare_scores(pair, paths)
            timing = {f"n={n}": await time_levels(pair, paths, n) for n in WIDTHS}
        finally:
            await pair.stop()
    report(paths=len(paths), steps=steps, bit_equal_paths=equal, seconds_per_iteration=timing)


async def sample_paths(pair: VllmPair) -> list[tuple[Problem, tuple[str, ...]]]:
    """Generate PATHS paths, 8 of each problem, as (problem, steps)."""
    chosen = [Problem.from_text(p["problem"]) for p in read_problems("heldout", PATHS // 8)]

    async def one(problem: Problem, seed: int) -> tuple[Problem, tuple[str, ...]]:
        request = ExtendRequest(
            token_ids=pair.generator.codec.encode_chat(problem.messages),
            seed=seed,
            sampling=Sampling(),
            max_tokens=512,
            to_boundary=False,
        )
        ids: list[int] = []
        async with aclosing(pair.generator.extend(request)) as stream:
            async for chunk in stream:
                ids += chunk.token_ids
        return problem, split_steps(pair.generator.codec.decode(ids))

    return list(await asyncio.gather(*(one(chosen[i // 8], i) for i in range(PATHS))))


async def compare_scores(
    pair: VllmPair, paths: list[tuple[Problem, tuple[str, ...]]]
) -> tuple[int, int]:
    """Return the number of paths whose scores are all equal, and the number of steps compared.

    Paths are scored in random order and eight at a time, so that evictions and batches occur.
    """
    random.Random(0).shuffle(paths)
    equal = steps = 0
    for start in range(0, len(paths), 8):
        group = paths[start : start + 8]
        grown = await asyncio.gather(*(score_steps(pair.verifier.score, *path) for path in group))
        for (problem, texts), scores in zip(group, grown, strict=True):
            whole = await pair.verifier.score_whole(ScoreRequest(problem=problem, steps=texts))
            equal += whole.scores == scores
            steps += len(texts)
    return equal, steps


async def score_steps(score: Scorer, problem: Problem, texts: tuple[str, ...]) -> tuple[float, ...]:
    """Score a path step by step, as it grows in a search."""
    found: list[float] = []
    for k in range(len(texts)):
        request = ScoreRequest(problem=problem, steps=texts[: k + 1], num_scored=k)
        found += (await score(request)).scores
    return tuple(found)


async def time_levels(
    pair: VllmPair, paths: list[tuple[Problem, tuple[str, ...]]], n: int
) -> dict[str, float]:
    """Return the median seconds to score one level of n paths in both ways, and their ratio."""
    times: dict[str, list[float]] = {"suffix": [], "whole": []}
    for round_ in range(ROUNDS):
        for side in ("suffix", "whole"):
            score = pair.verifier.score if side == "suffix" else pair.verifier.score_whole
            start = (2 * round_ + (side == "whole")) * 7  # other paths each time
            group = [paths[(start + i * 3) % len(paths)] for i in range(n)]
            group = [(make_distinct(p, round_, side), t) for p, t in group]
            for level in range(max(len(t) for _, t in group)):
                requests = [
                    ScoreRequest(problem=p, steps=t[: level + 1], num_scored=level)
                    for p, t in group
                    if len(t) > level
                ]
                began = time.perf_counter()
                await asyncio.gather(*(score(r) for r in requests))
                if len(requests) == n:
                    times[side].append(time.perf_counter() - began)
    medians = {side: statistics.median(seconds) for side, seconds in times.items()}
    return {
        "suffix_s": round(medians["suffix"], 4),
        "whole_s": round(medians["whole"], 4),
        "ratio": round(medians["whole"] / medians["suffix"], 2),
    }


def make_distinct(problem: Problem, round_: int, side: str) -> Problem:
    """Change the problem's text, so that no cache holds anything of it."""
    return Problem.from_text(f"{problem.text} ({side} {round_})")


if __name__ == "__main__":
    asyncio.run(measure())
