"""Verifier with KV reuse against whole-path scoring: are the scores bit-equal, what is saved?

A: every step scored as the path grows (only the new suffix is computed). B: the whole path at
every step. 200 paths of real generations; then seconds per iteration (all n paths of a level) at
n = 16 and 64, A B A B, medians.
"""

from __future__ import annotations

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
from flashedge.search.steps import split_steps
from flashedge.types import Problem, Sampling
from scripts.bench.daemon import problems, report

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
            paths = await sample(pair)
            equal, steps = await compare(pair, paths)
            timing = {f"n={n}": await iterations(pair, paths, n) for n in WIDTHS}
        finally:
            await pair.stop()
    report(paths=len(paths), steps=steps, bit_equal_paths=equal, seconds_per_iteration=timing)


async def sample(pair: VllmPair) -> list[tuple[Problem, tuple[str, ...]]]:
    """(problem, steps) of PATHS generations, several of the same problem."""
    asked = [Problem.from_text(p["problem"]) for p in problems("heldout", PATHS // 8)]

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

    return list(await asyncio.gather(*(one(asked[i // 8], i) for i in range(PATHS))))


async def compare(pair: VllmPair, paths: list[tuple[Problem, tuple[str, ...]]]) -> tuple[int, int]:
    """Paths whose suffix scores all equal the whole-path ones, and steps compared.

    In random order and eight at a time, so that evictions and batches are part of it."""
    random.Random(0).shuffle(paths)
    equal = steps = 0
    for start in range(0, len(paths), 8):
        group = paths[start : start + 8]
        grown = await asyncio.gather(*(grow(pair.verifier.score, *path) for path in group))
        for (problem, texts), scores in zip(group, grown, strict=True):
            whole = await pair.verifier.score_whole(ScoreRequest(problem=problem, steps=texts))
            equal += whole.scores == scores
            steps += len(texts)
    return equal, steps


async def grow(score: Scorer, problem: Problem, texts: tuple[str, ...]) -> tuple[float, ...]:
    found: list[float] = []
    for k in range(len(texts)):
        request = ScoreRequest(problem=problem, steps=texts[: k + 1], num_scored=k)
        found += (await score(request)).scores
    return tuple(found)


async def iterations(
    pair: VllmPair, paths: list[tuple[Problem, tuple[str, ...]]], n: int
) -> dict[str, float]:
    """Median seconds to score one level of n paths, by suffix and whole; and their ratio."""
    times: dict[str, list[float]] = {"suffix": [], "whole": []}
    for round_ in range(ROUNDS):
        for side in ("suffix", "whole"):
            score = pair.verifier.score if side == "suffix" else pair.verifier.score_whole
            start = (2 * round_ + (side == "whole")) * 7  # other paths each time: no memo helps
            group = [paths[(start + i * 3) % len(paths)] for i in range(n)]
            group = [(fresh(p, round_, side), t) for p, t in group]
            for level in range(max(len(t) for _, t in group)):
                asked = [
                    ScoreRequest(problem=p, steps=t[: level + 1], num_scored=level)
                    for p, t in group
                    if len(t) > level
                ]
                began = time.perf_counter()
                await asyncio.gather(*(score(r) for r in asked))
                if len(asked) == n:
                    times[side].append(time.perf_counter() - began)
    medians = {side: statistics.median(seconds) for side, seconds in times.items()}
    return {
        "suffix_s": round(medians["suffix"], 4),
        "whole_s": round(medians["whole"], 4),
        "ratio": round(medians["whole"] / medians["suffix"], 2),
    }


def fresh(problem: Problem, round_: int, side: str) -> Problem:
    """The problem said so that nothing of it is in cache or memo yet."""
    return Problem.from_text(f"{problem.text} ({side} {round_})")


if __name__ == "__main__":
    asyncio.run(measure())
