"""Solves problems in several ways on a daemon: many at once, or each alone for its time."""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.client.async_client import AsyncClient
from flashedge.config import Config
from flashedge.errors import ContextOverflow, GenerationFailed
from flashedge.files.problems import LabelledProblem, read_labelled
from flashedge.models.folders import fingerprint_pair
from flashedge.models.specs import ModelSpec, Pair
from flashedge.runtime.drive.tasks import run_workers
from flashedge.search.tree import mix64
from scripts.bench.real.records import (
    BEST,
    GREEDY,
    SAMPLED,
    SAMPLES,
    VOTE,
    WEIGHTED,
    FinishedPath,
    Record,
    Way,
    find_samples,
)
from scripts.lab.runs import solve_and_delete

BODIES: Mapping[str, Mapping[str, Any]] = {
    GREEDY: {"strategy": "self_consistency", "temperature": 0.0},
    VOTE: {"strategy": "self_consistency"},
    SAMPLES: {"strategy": "best_of_n"},
    WEIGHTED: {"strategy": "best_of_n"},
    BEST: {"strategy": "best_of_n", "selection": "best"},
}
"""What a run is asked for. Every other way is the strategy of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedProblem:
    """A problem with its place in the fixed order. See the fields of `Record`."""

    file: str
    place: int
    digest: str
    problem: LabelledProblem


Task = tuple[PlacedProblem, Way]
"""A problem to solve in one way."""


def describe_pair(pair: Pair, config: Config, seed: int) -> dict[str, Any]:
    """Describe what all records of one table share: see `Record.pair`."""
    return {
        "name": pair.name,
        "models": fingerprint_pair(pair, config),
        "generator": _name_model(pair.generator),
        "verifier": _name_model(pair.verifier) if pair.has_verifier else None,
        "temperature": pair.sampling.temperature,
        "max_step_tokens": pair.max_step_tokens,
        "max_path_tokens": pair.max_path_tokens,
        "seed": seed,
    }


def _name_model(spec: ModelSpec) -> str:
    """The model's id and revision. Of a folder its last part, since its place does not count."""
    name = Path(spec.source).name if Path(spec.source).is_dir() else spec.source
    return f"{name}@{spec.revision}" if spec.revision else name


def order_problems(files: Sequence[Path], limits: Sequence[int | None]) -> list[PlacedProblem]:
    """The first `limits` problems of each file.

    Those of a file are ordered by a digest of their texts: shuffled, but always in the same order,
    so that the first ones are a fair sample and any minutes add to one table. The files take turns,
    in proportion to their numbers of problems.
    """
    found: list[tuple[float, PlacedProblem]] = []
    for file, limit in zip(files, limits, strict=True):
        digests = {p: hashlib.sha256(p.text.encode()).hexdigest()[:16] for p in read_labelled(file)}
        chosen = sorted(digests, key=digests.__getitem__)[:limit]
        for place, problem in enumerate(chosen):
            digest = digests[problem]
            placed = PlacedProblem(file=file.stem, place=place, digest=digest, problem=problem)
            found.append(((place + 0.5) / len(chosen), placed))
    return [placed for _, placed in sorted(found, key=lambda each: each[0])]


def list_tasks(
    problems: Iterable[PlacedProblem],
    ways: Sequence[Way],
    records: Sequence[Record],
    *,
    alone: bool,
) -> list[Task]:
    """List what is still to be solved or has failed, one problem after the other. Unless runs are
    alone, one set of samples serves all ways that choose among them."""
    most = max((way.n for way in ways if way.name in SAMPLED), default=0)
    if not alone and most:
        ways = [Way(SAMPLES, most), *(way for way in ways if way.name not in SAMPLED)]
    solved = [record for record in records if record.error is None]
    done = {record.key for record in solved}
    drawn = {at: Way.parse(record.way).n for at, record in find_samples(solved).items()}
    return [
        (at, way)
        for at in problems
        for way in ways
        if (at.file, at.digest, str(way), alone) not in done
        and not (way.name == SAMPLES and drawn.get((at.file, at.place), 0) >= way.n)
    ]


class Solver:
    """Solves tasks on a daemon. Close its grader at the end."""

    def __init__(
        self,
        client: AsyncClient,
        pair: Mapping[str, Any],
        machine: Mapping[str, str],
        *,
        alone: bool,
        append: Callable[[Record], None],
    ) -> None:
        """pair, machine, alone: as in the records, each of which goes to `append`."""
        self.grader = MathGrader()
        self._client, self._pair, self._append = client, pair, append
        self._shared: dict[str, Any] = {"pair": pair, "machine": machine, "alone": alone}

    async def solve_all(self, tasks: Sequence[Task], in_flight: int) -> None:
        """Solve the tasks. A problem that exceeds the context, or on which a request failed, gets a
        record with its error. Any other error is raised and cancels the open runs, and so does
        cancelling this."""
        if self._shared["alone"] and tasks:  # the first run pays for what the daemon loads then
            warm_up = {**self._build_body(*tasks[-1]), "seed": self._pair["seed"]}
            await solve_and_delete(self._client, warm_up)
        await run_workers(in_flight, self._solve, tasks)

    async def _solve(self, task: Task) -> None:
        at, way = task
        head = {
            **self._shared,
            "file": at.file,
            "place": at.place,
            "problem": at.digest,
            "id": at.problem.id,
            "way": str(way),
            "known": at.problem.answer,
        }
        try:
            result = await solve_and_delete(self._client, self._build_body(at, way))
        except (ContextOverflow, GenerationFailed) as error:
            self._append(Record(**head, error=error.line))
        else:
            self._append(Record(**head, **await self._judge(result, at.problem.answer)))

    def _build_body(self, at: PlacedProblem, way: Way) -> dict[str, Any]:
        has_scores = way.name != SAMPLES or self._pair["verifier"] is not None
        name = way.name if has_scores else VOTE
        seed = mix64(self._pair["seed"], int(at.digest, 16))  # no two problems share randomness
        if self._shared["alone"]:  # else the verifier would have the KV of another way's paths
            seed = mix64(seed, zlib.crc32(str(way).encode()))
        return {
            "pair": self._pair["name"],
            "problem": at.problem.text,
            "n": way.n,
            "seed": seed,
            "early_exit": False,
            **BODIES.get(name, {"strategy": name}),
        }

    async def _judge(self, result: Mapping[str, Any], known: str) -> dict[str, Any]:
        """The fields of a record that follow from a run's result."""
        paths, usage = result["completions"], result["usage"]
        answers = {result["answer"], *(path["answer"] for path in paths)} - {None}
        right = {answer: await self.grader.equal(answer, known) for answer in answers}
        return {
            "answer": result["answer"],
            "right": right.get(result["answer"], False),
            "paths": tuple(
                FinishedPath(
                    answer=path["answer"],
                    right=right.get(path["answer"], False),
                    score=path["score"],
                    scores=tuple(path["step_scores"]),
                    tokens=len(path["token_ids"]),
                    finish=path["finish_reason"],
                )
                for path in paths
            ),
            "tree_tokens": usage["tree_tokens"],
            "wasted_tokens": usage["speculated_tokens"],
            "verifier_tokens": usage["verifier_tokens"],
            "verifier_cached_tokens": usage["verifier_cached_tokens"],
            "seconds": result["timing"]["total_s"],
        }
