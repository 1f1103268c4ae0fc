"""The engines that one run uses, and how a failure under it is waited out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from flashedge.answers.words import alike, group
from flashedge.engine.base import Generator, Verifier
from flashedge.errors import EngineDead, GenerationFailed
from flashedge.runtime.drive.ordering import Ordering
from flashedge.scheduling.prefix_order import sweep_order
from flashedge.types import NodeId

RETRIES = 3
PAUSES_S = (0.05, 0.5, 2.0)  # before each wait: an engine may learn of its death after we do
RESTART_TIMEOUT_S = 120.0
T = TypeVar("T")


class Grader(Protocol):
    """Groups equal answers. See `flashedge.answers.workers.mathematics`."""

    async def cluster(
        self, answers: Mapping[NodeId, str | None]
    ) -> Mapping[NodeId, str | None]: ...


class TextGroups(Protocol):
    """Groups open-ended answers. See `flashedge.learned`."""

    async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
        """answers: (n,) -> (n,) the first member of each one's group, None for no answer."""
        ...

    async def close(self) -> None: ...


class WordGroups:
    """By likeness of words: what needs no model."""

    async def group(self, answers: Sequence[str | None]) -> Sequence[str | None]:
        return group(answers, alike)

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """order: in which the paths of a level are handed to them; speculation: the generator goes on
    past finished steps while others generate, if it can; lookahead: what it finished there is
    scored together with the step before; early_scores: steps are scored as they come, while others
    of their level generate; score_once: equal paths share one score. None changes a result."""

    generator: Generator
    verifier: Verifier
    grader: Grader
    texts: TextGroups = field(default_factory=WordGroups)
    order: Ordering = sweep_order
    speculation: bool = True
    lookahead: bool = False
    early_scores: bool = False
    score_once: bool = True


async def retried(
    engine: Generator | Verifier,
    work: Callable[[], Awaitable[T]],
    on_restart: Callable[[float], None],
) -> T:
    """Do `work`, again after an engine's restart or a failed request.

    What a request yields is a pure function of its path and seed, so doing it again loses
    nothing. Raises EngineDead when the engine stays away, GenerationFailed when it keeps failing.
    A cancel that the engine answers with an error is a cancel.
    """
    for attempt in range(RETRIES):
        try:
            return await work()
        except EngineDead:
            _give_way()
            clock = asyncio.get_running_loop().time
            since = clock()
            await asyncio.sleep(PAUSES_S[attempt])
            await engine.wait_ready(RESTART_TIMEOUT_S)
            on_restart(clock() - since)
        except GenerationFailed:
            _give_way()
            if attempt == RETRIES - 1:
                raise
    return await work()


def _give_way() -> None:
    """Raise the cancellation whose place an engine's error took."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
