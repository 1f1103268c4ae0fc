"""Grades the answers of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.files.problems import FileProblem
from flashedge.types import NodeId
from scripts.lab.benchmark.live import LiveRun

P = TypeVar("P", int, int | str)


async def grade_answers(
    runs: Iterable[LiveRun], problems: Sequence[FileProblem]
) -> dict[tuple[int, str | None], bool]:
    """Grade the answers to problems whose right answer is known. (problem, answer) -> is right."""
    known = {p.index: p.answer for p in problems if p.answer is not None}
    return await grade_pairs(((run.problem, run.answer) for run in runs), known)


async def grade_pairs(
    asked: Iterable[tuple[P, str | None]], known: Mapping[P, str]
) -> dict[tuple[P, str | None], bool]:
    """Grade answers to problems. (problem, answer) -> is right.

    asked: (problem, answer) pairs, of which those without a right answer are left out. known: right
    answers by problem.
    """
    pairs = sorted({(p, answer) for p, answer in asked if p in known}, key=str)
    grader = MathGrader()
    found: dict[tuple[P, str | None], bool] = {}
    try:
        for problem, answer in pairs:
            same = await grader.cluster({NodeId(0): known[problem], NodeId(1): answer})
            found[problem, answer] = answer is not None and same[NodeId(0)] == same[NodeId(1)]
    finally:
        await grader.close()
    return found
