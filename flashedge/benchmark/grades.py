"""Grades the answers of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.benchmark.live_run import LiveRun
from flashedge.files.problems import FileProblem
from flashedge.types import NodeId


async def grade_answers(
    runs: Iterable[LiveRun], problems: Sequence[FileProblem]
) -> dict[tuple[int, str | None], bool]:
    """Grade the answers to problems whose right answer is known. (problem, answer) -> is right."""
    known = {p.index: p.answer for p in problems if p.answer is not None}
    asked = {(run.problem, run.answer) for run in runs if run.problem in known}
    grader = MathGrader()
    found: dict[tuple[int, str | None], bool] = {}
    try:
        for problem, answer in sorted(asked, key=str):
            pair = {NodeId(0): known[problem], NodeId(1): answer}
            same = await grader.cluster(pair)
            found[problem, answer] = answer is not None and same[NodeId(0)] == same[NodeId(1)]
    finally:
        await grader.close()
    return found
