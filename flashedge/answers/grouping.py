"""Groups the answers of a search's paths, aside from the event loop where there is much to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from flashedge.answers.extraction import extract_answer, extract_open_answer
from flashedge.answers.groups import group_by_first_match
from flashedge.answers.structured import find_calls, write_canonically
from flashedge.answers.words import are_alike
from flashedge.types import NodeId

MOST_AT_ONCE = 50_000
"""Characters that are read without a thread. They take some milliseconds at most."""
T = TypeVar("T")
_OPENS = ("{", "[", "<")
"""How JSON and tool calls begin."""


class Grader(Protocol):
    """Groups boxed answers, tests 1 to 4. See `workers.mathematics.MathGrader`."""

    async def cluster(self, answers: Mapping[NodeId, str | None]) -> Mapping[NodeId, str | None]:
        """Map each node to the answer of the lowest node in its group, None without an answer."""
        ...


class TextGroups(Protocol):
    """Groups open-ended answers. See `WordGroups` and `workers.embedding_groups`."""

    @property
    def doubts(self) -> int:
        """How often the grouping came from a time limit, so that it could be another one."""
        ...

    async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
        """answers: (n,) -> (n,) the first member of each one's group, None without an answer."""
        ...

    async def close(self) -> None: ...


class WordGroups:
    """Groups open-ended answers by their wording, which needs no model."""

    doubts = 0

    async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
        size = sum(len(answer) for answer in answers if answer is not None) * len(answers)
        return await work_aside(size, group_by_first_match, answers, are_alike)

    async def close(self) -> None:
        pass


async def work_aside(size: int, work: Callable[..., T], *args: Any) -> T:
    """Do work on `size` characters: in a thread where it would hold up the event loop. Small work
    is not worth one."""
    return await asyncio.to_thread(work, *args) if size > MOST_AT_ONCE else work(*args)


async def group_answers(
    paths: Mapping[NodeId, Sequence[str]],
    kind: str,
    grader: Grader,
    texts: TextGroups,
    call_marks: Sequence[str] = (),
) -> Mapping[NodeId, str | None]:
    """Extract the answer of each path and map each node to the representative of its group.

    paths: the step texts of each finished path; kind: one of ANSWER_KINDS; call_marks: how the
    model begins a tool call (`structured.list_call_marks`). The representative is the answer of
    the group's lowest node; None if the path has no answer.
    """
    size = sum(len(step) for steps in paths.values() for step in steps)
    if kind == "boxed":
        return await grader.cluster(await work_aside(size, _list_boxes, paths))
    if kind == "json":
        boxed, rest = await work_aside(size, _split_structured, paths, call_marks)
        return {**rest, **(await grader.cluster(boxed) if boxed else {})}
    if kind == "whole":
        return {node: "".join(steps).strip() or None for node, steps in paths.items()}
    nodes = sorted(paths)
    answers = await work_aside(size, lambda: [extract_open_answer(paths[n]) for n in nodes])
    return dict(zip(nodes, await texts.group(answers), strict=True))


def _list_boxes(paths: Mapping[NodeId, Sequence[str]]) -> dict[NodeId, str | None]:
    return {node: extract_answer("".join(steps)) for node, steps in paths.items()}


def _split_structured(
    paths: Mapping[NodeId, Sequence[str]], call_marks: Sequence[str]
) -> tuple[dict[NodeId, str], dict[NodeId, str | None]]:
    """(boxed answers of prose, the other answers as they are compared)."""
    texts_of = {node: "".join(steps) for node, steps in paths.items()}
    texts_of = {n: find_calls(text, call_marks) or text for n, text in texts_of.items()}
    prose = {n: text for n, text in texts_of.items() if not text.lstrip().startswith(_OPENS)}
    boxed = {node: box for node, text in prose.items() if (box := extract_answer(text))}
    rest = {node: write_canonically(texts_of[node]) for node in texts_of if node not in boxed}
    return boxed, rest
