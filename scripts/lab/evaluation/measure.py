"""Measure problems on the daemon, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.client.async_client import AsyncClient
from flashedge.errors import ContextOverflow, FlashEdgeError, GenerationFailed
from flashedge.files.problems import LabelledProblem
from flashedge.runtime.drive.tasks import raise_first_error
from flashedge.search.tree import mix64
from flashedge.types import NodeId
from scripts.lab.evaluation.records import Chain, ProblemRecord, Settings
from scripts.lab.evaluation.runs import run_to_end
from scripts.lab.evaluation.step_tokens import StepCounter


class Watcher(Protocol):
    """Observes a measurement. Its methods are called on the event loop."""

    def run_done(self) -> None: ...
    def problem_done(self, record: ProblemRecord) -> None: ...
    def problem_failed(self, problem: LabelledProblem, error: FlashEdgeError) -> None: ...


def runs_per_problem(settings: Settings, searches: bool = True) -> int:
    """Greedy, the samples, and a beam for each n."""
    return 2 + len(settings.n) * searches


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurer:
    """Runs the problems of an evaluation."""

    client: AsyncClient
    grader: MathGrader
    settings: Settings
    count_steps: StepCounter
    watcher: Watcher

    in_flight: int
    """Problems measured at the same time."""

    searches: bool = True
    """Whether beam search is measured. It needs a verifier that judges steps."""

    async def measure(self, problems: Iterable[LabelledProblem]) -> None:
        """Measure all problems and report each to the watcher.

        A problem that exceeds the context, or on which a request failed, is reported as failed and
        skipped. Any other error cancels the open runs and is raised. If this is cancelled, so are
        the open runs.
        """
        left = iter(problems)

        async def work() -> None:
            for problem in left:
                try:
                    record = await self._measure_problem(problem)
                except (ContextOverflow, GenerationFailed) as error:
                    self.watcher.problem_failed(problem, error)
                else:
                    self.watcher.problem_done(record)

        with raise_first_error():
            async with asyncio.TaskGroup() as group:
                for _ in range(self.in_flight):
                    group.create_task(work())

    async def _measure_problem(self, problem: LabelledProblem) -> ProblemRecord:
        settings = self.settings
        sampled = {"temperature": settings.temperature}
        greedy = await self._run(problem, {"strategy": "best_of_n", "n": 1, "temperature": 0.0})
        many = {"strategy": "best_of_n", "n": settings.n[-1], **sampled}
        samples = await self._run(problem, many)
        beams = {
            n: await self._run(problem, {"strategy": "beam", "n": n, **sampled})
            for n in settings.n
            if self.searches
        }
        answers = [c["answer"] for c in samples["completions"]]
        spelled = await self.grader.cluster({NodeId(i): a for i, a in enumerate(answers)})
        right = {a: await self._is_right(a, problem) for a in set(spelled.values())}
        return ProblemRecord(
            index=problem.index,
            id=str(problem.id),
            family=problem.family,
            steps=problem.steps,
            greedy=await self._grade(greedy, problem),
            chains=tuple(
                self._build_chain(completion, spelled[NodeId(i)], right[spelled[NodeId(i)]])
                for i, completion in enumerate(samples["completions"])
            ),
            beams={n: await self._grade(result, problem) for n, result in beams.items()},
        )

    async def _run(self, problem: LabelledProblem, search: Mapping[str, Any]) -> dict[str, Any]:
        """The object of one run. Its seed depends on the problem: no two share randomness."""
        settings = self.settings
        seed = mix64(settings.seed, problem.index)
        body = {"pair": settings.pair, "problem": problem.text, "seed": seed, "early_exit": False}
        result = await run_to_end(self.client, {**body, **search})
        self.watcher.run_done()
        return result

    async def _is_right(self, answer: str | None, problem: LabelledProblem) -> bool:
        return answer is not None and await self.grader.equal(answer, problem.answer)

    async def _grade(self, result: Mapping[str, Any], problem: LabelledProblem) -> Chain:
        answer = result["answer"]
        right = await self._is_right(answer, problem)
        return Chain(text=result["text"], answer=answer, right=right)

    def _build_chain(self, completion: Mapping[str, Any], answer: str | None, right: bool) -> Chain:
        scores = tuple(completion["step_scores"])
        lengths = self.count_steps(completion["token_ids"], len(scores))
        return Chain(
            text=completion["text"],
            answer=answer,
            right=right,
            scores=scores,
            step_tokens=lengths,
        )
