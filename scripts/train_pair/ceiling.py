"""The ceiling: beam search on the real generator, with the exact checker as the verifier.

This is what a perfect verifier would reach with this generator.
"""

import asyncio
from collections.abc import Mapping, Sequence

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.cli.progress import show_bar
from flashedge.config import Config
from flashedge.engine.base import EngineProxy, ScoreRequest, StepScores, Verifier
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import mix64
from flashedge.types import Problem as Asked
from flashedge.types import Sampling
from scripts.train_pair.checker import check_steps, is_correct, split_steps
from scripts.train_pair.problems import Problem

AT_ONCE = 8


class CheckerVerifier(EngineProxy[Verifier]):
    """A `Verifier` that scores 1 while nothing is wrong so far, else 0."""

    def __init__(self, problems: Mapping[str, Problem], engine: Verifier) -> None:
        """problems: by text. engine: handles every call other than `score`."""
        super().__init__(engine)
        self._problems = problems

    async def score(self, request: ScoreRequest) -> StepScores:
        spec = self._problems[request.problem.text].spec
        steps = [part for text in request.steps for part in split_steps(text)]
        scores = tuple(float(check.so_far) for check in check_steps(spec, steps))
        new = len(request.steps) - request.num_scored
        return StepScores(scores=scores[-new:], tokens=0, cached_tokens=0)


async def measure_ceiling(
    problems: Sequence[Problem], n: int, config: Config, seed: int
) -> list[bool]:
    """Return, for each problem, whether beam search with the exact checker finds the answer."""
    chosen = find_pair(config.pair, config)
    pair = VllmPair(chosen, config)
    await pair.start()
    grader = MathGrader()
    judge = CheckerVerifier({problem.text: problem for problem in problems}, pair.verifier)
    engines = Engines(generator=pair.generator, verifier=judge, grader=grader)
    room = asyncio.Semaphore(AT_ONCE)

    async def solve(index: int, problem: Problem) -> bool:
        spec = Request(
            problem=Asked.from_text(problem.text),
            pair=config.pair,
            n=n,
            seed=mix64(seed, index),
            sampling=Sampling(temperature=0.8),
            max_step_tokens=chosen.max_step_tokens,
            max_path_tokens=chosen.max_path_tokens,
        )
        prompt = pair.generator.codec.encode_chat(spec.problem.messages)
        async with room:
            driver = Driver(build_search(spec), spec, prompt, engines, lambda event: None)
            outcome = await driver.run()
        advance(1)
        choice = outcome.finish.choice
        return choice is not None and is_correct(problem, outcome.tree.path_text(choice))

    try:
        with show_bar(f"exact checker, n = {n}", len(problems), unit="problems") as advance:
            return list(await asyncio.gather(*(solve(i, p) for i, p in enumerate(problems))))
    finally:
        await grader.close()
        await pair.stop()
