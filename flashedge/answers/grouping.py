"""Groups the answers of a search's paths, in a thread if there is much to read."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from flashedge.answers.extraction import extract_answer, extract_open_answer, find_named_answer
from flashedge.answers.pairwise import are_alike, group_by_first_match
from flashedge.answers.structured import find_calls, write_canonically
from flashedge.types import NodeId

MAX_ON_LOOP_CHARS = 50_000
"""Longer texts are read in a thread. Chosen by hand: ten times as many would hold up the event loop
for tens of milliseconds, and for a tenth of them a thread costs more than it saves."""
T = TypeVar("T")
_OPENS = ("{", "[", "<")
"""How JSON and tool calls begin."""


class Grader(Protocol):
    """Groups boxed answers by tests 1 to 4 of `equality`. Each node gets the answer of the lowest
    node in its group, or None if it has no answer. See `workers.mathematics.MathGrader`."""

    async def cluster(
        self, answers: Mapping[NodeId, str | None]
    ) -> Mapping[NodeId, str | None]: ...


class TextGroups(Protocol):
    """Groups open-ended answers. See `WordGroups` and `workers.embedding_groups`."""

    @property
    def num_failures(self) -> int:
        """How often a worker failed or was late, so that a repetition may group otherwise."""
        ...

    async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
        """answers: (n,) -> (n,) the first member of each answer's group. None stays None."""
        ...

    async def close(self) -> None: ...


class WordGroups:
    """Groups open-ended answers by their wording, which needs no model."""

    num_failures = 0

    async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
        # Each answer may be compared with every other one.
        size = sum(len(answer) for answer in answers if answer is not None) * len(answers)
        return await work_aside(size, group_by_first_match, answers, are_alike)

    async def close(self) -> None:
        pass


async def work_aside(size: int, work: Callable[..., T], *args: Any) -> T:
    """Call `work(*args)`, which reads `size` characters, in a thread if they are many."""
    return await asyncio.to_thread(work, *args) if size > MAX_ON_LOOP_CHARS else work(*args)


async def group_answers(
    paths: Mapping[NodeId, Sequence[str]],
    kind: str,
    grader: Grader,
    texts: TextGroups,
    call_marks: Sequence[str] = (),
) -> tuple[Mapping[NodeId, str | None], bool]:
    """Extract the answer of each path and group equal ones. Returns (answers, is_unboxed): for each
    node the answer of its group's lowest node, or None where the path has no answer; and whether
    the answers are only named (`extraction.find_named_answer`), because no path has a box.

    paths: the step texts of each finished path. kind: one of `equality.ANSWER_KINDS`. call_marks:
    see `structured.list_call_marks`.
    """
    size = sum(len(step) for steps in paths.values() for step in steps)
    if kind == "boxed":
        answers, is_unboxed = await work_aside(size, _list_answers, paths)
        return await grader.cluster(answers), is_unboxed
    if kind == "json":
        boxed, rest = await work_aside(size, _split_structured, paths, call_marks)
        return {**rest, **(await grader.cluster(boxed) if boxed else {})}, False
    if kind == "whole":
        return {n: "".join(steps).strip() or None for n, steps in paths.items()}, False
    nodes = sorted(paths)
    opened = await work_aside(size, lambda: [extract_open_answer(paths[n]) for n in nodes])
    return dict(zip(nodes, await texts.group(opened), strict=True)), False


def _list_answers(paths: Mapping[NodeId, Sequence[str]]) -> tuple[dict[NodeId, str | None], bool]:
    """The answer of each path, and whether these answers are named ones."""
    joined = {node: "".join(steps) for node, steps in paths.items()}
    boxed = {node: extract_answer(text) for node, text in joined.items()}
    if any(box is not None for box in boxed.values()):
        return boxed, False
    named = {node: find_named_answer(text) for node, text in joined.items()}
    return named, any(answer is not None for answer in named.values())


def _split_structured(
    paths: Mapping[NodeId, Sequence[str]], call_marks: Sequence[str]
) -> tuple[dict[NodeId, str], dict[NodeId, str | None]]:
    """Returns the boxed answers of prose, and the other answers in the form that is compared."""
    texts_of = {node: "".join(steps) for node, steps in paths.items()}
    texts_of = {n: find_calls(text, call_marks) or text for n, text in texts_of.items()}
    prose = {n: text for n, text in texts_of.items() if not text.lstrip().startswith(_OPENS)}
    boxed = {node: box for node, text in prose.items() if (box := extract_answer(text))}
    rest = {node: write_canonically(texts_of[node]) for node in texts_of if node not in boxed}
    return boxed, rest
