"""Runs the problems of an evaluation on a daemon, and keeps what its figures are made of.

The measurements of each problem are kept in a file, so that a second call resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.client.async_client import AsyncClient
from flashedge.errors import ContextOverflow, FlashEdgeError, GenerationFailed
from flashedge.files.journal import Journal
from flashedge.files.problems import LabelledProblem
from flashedge.runtime.drive.tasks import raise_first_error
from flashedge.search.step_rules import BoundaryRule
from flashedge.search.tree import mix64
from flashedge.types import NodeId
from scripts.lab.runs import solve_and_delete


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all measurements in one file share. A call with other settings is refused."""

    pair: str
    models: str
    """Digest of the pair's models."""
    problems: str
    """Digest of the problem file."""
    n: tuple[int, ...]
    """Numbers of paths, ascending."""
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One sampled solution."""

    text: str
    answer: str | None
    """Equal answers to one problem are spelled alike."""
    right: bool
    scores: tuple[float, ...] = ()
    """(num_steps,) in [0, 1]."""
    step_tokens: tuple[int, ...] = ()
    """(num_steps,) tokens of each step. Empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord:
    index: int
    id: str
    family: str | None
    steps: int | None
    greedy: Chain
    chains: tuple[Chain, ...]
    """The samples, as many as the largest n."""
    beams: Mapping[int, Chain]
    """The solutions that beam search chose, by n."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProblemRecord:
        """Raises KeyError, TypeError, ValueError."""
        return cls(
            **{name: data[name] for name in ("index", "id", "family", "steps")},
            greedy=_parse_chain(data["greedy"]),
            chains=tuple(_parse_chain(chain) for chain in data["chains"]),
            beams={int(n): _parse_chain(chain) for n, chain in data["beams"].items()},
        )


def _parse_chain(data: Mapping[str, Any]) -> Chain:
    lists = {name: tuple(data[name]) for name in ("scores", "step_tokens")}
    return Chain(**{**data, **lists})


def open_records(path: Path, settings: Settings) -> Journal[int, ProblemRecord]:
    """Raises what `Journal` does."""
    return Journal(path, asdict(settings), ProblemRecord.from_json, key=lambda r: r.index)


StepCounter = Callable[[Sequence[int], int], tuple[int, ...]]


def step_counter(generator: Path) -> StepCounter:
    """A function (token_ids, num_steps) -> (num_steps,) tokens of each step.

    It returns () where the ids have another number of steps: another tokenizer made them.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(generator / "tokenizer.json"))
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    texts = (str(tokenizer.decode([token], skip_special_tokens=False)) for token in ids)
    rule = BoundaryRule.from_texts(enumerate(texts))

    def count(token_ids: Sequence[int], num_steps: int) -> tuple[int, ...]:
        lengths = [len(piece) for piece in rule.split_ids(token_ids)]
        if len(lengths) == num_steps + 1 and lengths[-1] == 1:
            lengths[-2:] = [lengths[-2] + 1]  # an end token after a blank line is no step
        return tuple(lengths) if len(lengths) == num_steps else ()

    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurer:
    """Measures problems, a number of them at the same time."""

    client: AsyncClient
    settings: Settings
    count_steps: StepCounter
    run_done: Callable[[], None]
    problem_done: Callable[[ProblemRecord], None]
    problem_failed: Callable[[LabelledProblem, FlashEdgeError], None]
    in_flight: int
    """Problems measured at the same time."""
    searches: bool = True
    """Whether beam search is measured. It needs a verifier that judges steps."""
    grader: MathGrader = field(default_factory=MathGrader)

    async def measure(self, problems: Iterable[LabelledProblem]) -> None:
        """Measure all problems and report each (`problem_done`).

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
                    self.problem_failed(problem, error)
                else:
                    self.problem_done(record)

        try:
            with raise_first_error():
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.in_flight):
                        group.create_task(work())
        finally:
            await self.grader.close()

    async def _measure_problem(self, problem: LabelledProblem) -> ProblemRecord:
        sizes, warm = self.settings.n, self.settings.temperature
        greedy = await self._run(problem, "best_of_n", 1, 0.0)
        samples = await self._run(problem, "best_of_n", sizes[-1], warm)
        beams = {n: await self._run(problem, "beam", n, warm) for n in sizes if self.searches}
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
                Chain(
                    text=completion["text"],
                    answer=spelled[NodeId(i)],
                    right=right[spelled[NodeId(i)]],
                    scores=tuple(completion["step_scores"]),
                    step_tokens=self.count_steps(
                        completion["token_ids"], len(completion["step_scores"])
                    ),
                )
                for i, completion in enumerate(samples["completions"])
            ),
            beams={n: await self._grade(result, problem) for n, result in beams.items()},
        )

    async def _run(
        self, problem: LabelledProblem, strategy: str, n: int, temperature: float
    ) -> dict[str, Any]:
        body = {
            "pair": self.settings.pair,
            "problem": problem.text,
            "seed": mix64(self.settings.seed, problem.index),  # no two problems share randomness
            "early_exit": False,
            "strategy": strategy,
            "n": n,
            "temperature": temperature,
        }
        result = await solve_and_delete(self.client, body)
        self.run_done()
        return result

    async def _is_right(self, answer: str | None, problem: LabelledProblem) -> bool:
        return answer is not None and await self.grader.equal(answer, problem.answer)

    async def _grade(self, result: Mapping[str, Any], problem: LabelledProblem) -> Chain:
        answer = result["answer"]
        right = await self._is_right(answer, problem)
        return Chain(text=result["text"], answer=answer, right=right)
