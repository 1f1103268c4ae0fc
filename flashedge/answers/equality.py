"""Whether answers are equal. Everything else in this package serves the functions here.

The last `\\boxed{...}` of a path is compared by these tests, cheapest first:

1. spelling: both have the same normal form (`spelling.normalize`);
2. number: both are plain numbers, and their values decide (`numbers.parse_number`);
3. phrase: both are plain words with different normal forms, so they differ;
4. mathematics: a worker process compares the formulas (`workers.mathematics`).

Open-ended answers, where no box is expected, are compared by one of

5. words: how much of their wording is shared (`words.are_alike`);
6. meaning: the distance of their embeddings, if a model is configured
   (`workers.embedding_groups`).

Where the whole text of a path is the answer, nothing is compared here: the verifier alone decides.

Answers that may be JSON or tool calls are compared as JSON (`structured.write_canonically`) where
they begin as such, tool calls also where reasoning stands before them; the others by their boxes,
or as they are where they have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from flashedge.answers.extraction import extract_answer, extract_open_answer
from flashedge.answers.groups import group_by_first_match
from flashedge.answers.numbers import parse_number
from flashedge.answers.spelling import normalize
from flashedge.answers.structured import find_calls, write_canonically
from flashedge.answers.words import are_alike
from flashedge.types import NodeId

ANSWER_KINDS = ("boxed", "text", "whole", "json")
_OPENS = ("{", "[", "<")
"""How JSON and tool calls begin."""
_PHRASE = re.compile(r"[^\W\d_]{3,}(?: [^\W\d_]+)*")


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
        return group_by_first_match(answers, are_alike)

    async def close(self) -> None:
        pass


def decide_equal(a: str, b: str) -> bool | None:
    """Whether two boxed answers are equal by tests 1 to 3. None if only mathematics can decide.

    A fraction and a decimal with different values stay undecided: the decimal may be rounded.
    """
    a, b = normalize(a), normalize(b)
    if a == b:
        return True
    left, right = parse_number(a), parse_number(b)
    if left is not None and right is not None:
        if left == right:
            return True
        may_be_rounded = ("/" in a and "." in b) or ("." in a and "/" in b)
        return None if may_be_rounded else False
    if _PHRASE.fullmatch(a) and _PHRASE.fullmatch(b):
        return False
    return None


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
    if kind == "boxed":
        return await grader.cluster(
            {node: extract_answer("".join(steps)) for node, steps in paths.items()}
        )
    if kind == "json":
        texts_of = {node: "".join(steps) for node, steps in paths.items()}
        texts_of = {n: find_calls(text, call_marks) or text for n, text in texts_of.items()}
        prose = {n: text for n, text in texts_of.items() if not text.lstrip().startswith(_OPENS)}
        boxed = {node: box for node, text in prose.items() if (box := extract_answer(text))}
        rest = {node: write_canonically(texts_of[node]) for node in texts_of if node not in boxed}
        return {**rest, **(await grader.cluster(boxed) if boxed else {})}
    if kind == "whole":
        return {node: "".join(steps).strip() or None for node, steps in paths.items()}
    nodes = sorted(paths)
    labels = await texts.group([extract_open_answer(paths[node]) for node in nodes])
    return dict(zip(nodes, labels, strict=True))
