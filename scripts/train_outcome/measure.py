"""Best of n whole answers by the outcome model, on the real engines and unseen problems."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.cli.progress import show_bar
from flashedge.config import Config
from flashedge.engine.vllm.pair import VllmPair
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair, VerifierSpec
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.search.tree import NodeStatus, mix64
from flashedge.types import Problem as Asked
from flashedge.types import Sampling
from scripts.lab.statistics import auc, interval, mean
from scripts.train_pair.checker import is_correct
from scripts.train_pair.problems import Problem

AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The answers to one problem."""

    right: tuple[bool, ...]
    """(n,) by the exact checker."""

    scores: tuple[float, ...]
    """(n,) by the outcome model."""

    chosen: bool
    """Whether the answer that the search chose is right."""


def make_pair(folder: Path, config: Config) -> Pair:
    """The bundled generator with the outcome model in `folder`."""
    verifier = VerifierSpec(
        source=str(folder), dtype="float32", max_model_len=1024, family="sequence_classification"
    )
    return replace(find_pair("bundled", config), name="outcome", verifier=verifier)


async def try_problems(
    folder: Path, problems: Sequence[Problem], n: int, config: Config, seed: int
) -> list[Trial]:
    """Run best-of-n on every problem. No two answers are compared by their text."""
    pair = make_pair(folder, config)
    serving = VllmPair(pair, config)
    await serving.start()
    grader = MathGrader()
    engines = Engines(
        generator=serving.generator,
        verifier=serving.verifier,
        grader=grader,
        judges=pair.verifier.judges,
    )
    room = asyncio.Semaphore(AT_ONCE)

    async def solve(index: int, problem: Problem) -> Trial:
        spec = Request(
            problem=Asked.from_text(problem.text),
            pair=pair.name,
            strategy="best_of_n",
            n=n,
            selection="best",
            answers="whole",
            seed=mix64(seed, index),
            sampling=Sampling(temperature=0.8),
            max_path_tokens=pair.max_path_tokens,
        )
        prompt = serving.generator.codec.encode_chat(spec.problem.messages)
        search = build_search(spec, pair.verifier.judges)
        async with room:
            outcome = await Driver(search, spec, prompt, engines, lambda event: None).run()
        advance(1)
        tree = outcome.tree
        paths = [node for node in tree.nodes.values() if node.status is NodeStatus.COMPLETE]
        return Trial(
            right=tuple(is_correct(problem, tree.path_text(node.id)) for node in paths),
            scores=tuple(score for node in paths for score in tree.path_scores(node.id)),
            chosen=is_correct(problem, tree.path_text(outcome.finish.choice)),
        )

    try:
        with show_bar(f"best of {n}", len(problems), unit="problems") as advance:
            return list(await asyncio.gather(*(solve(i, p) for i, p in enumerate(problems))))
    finally:
        await grader.close()
        await serving.stop()


def report_trials(trials: Sequence[Trial]) -> dict[str, Any]:
    """Figures in percent with 95 % bootstrap intervals over problems, and the mean AUC."""

    def percent(values: Sequence[float]) -> dict[str, Any]:
        low, high = interval(values)
        return {"percent": 100 * mean(values), "interval": [100 * low, 100 * high]}

    random = [mean([float(r) for r in trial.right]) for trial in trials]
    chosen = [float(trial.chosen) for trial in trials]
    mixed = [t for t in trials if any(t.right) and not all(t.right)]
    aucs = [
        auc(
            [s for s, r in zip(t.scores, t.right, strict=True) if r],
            [s for s, r in zip(t.scores, t.right, strict=True) if not r],
        )
        for t in mixed
    ]
    return {
        "problems": len(trials),
        "n": len(trials[0].right),
        "random_answer": percent(random),
        "best_by_outcome_model": percent(chosen),
        "gain": percent([c - r for c, r in zip(chosen, random, strict=True)]),
        "some_answer_right": percent([float(any(t.right)) for t in trials]),
        "auc_within_problem": {
            "mean": mean(aucs),
            "interval": list(interval(aucs)),
            "problems": len(mixed),
        },
    }
