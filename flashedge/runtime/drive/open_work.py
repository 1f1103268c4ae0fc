"""The open tasks of a run, and which node each of them works for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from flashedge.types import NodeId

T = TypeVar("T")


class OpenWork:
    """Starts a run's tasks and cancels them, all at once or by node."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], NodeId | None] = {}
        self._cancelled: set[NodeId] = set()

    def start(
        self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, T], node: NodeId | None = None
    ) -> asyncio.Task[T]:
        """Start a task of the group. node: whose result it works for, if it is one node's."""
        task = group.create_task(work)
        self._tasks[task] = node
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def cancel(self, nodes: Iterable[NodeId]) -> None:
        """Cancel what works for these nodes, for good: see `is_cancelled`."""
        gone = set(nodes)
        self._cancelled |= gone
        for task, node in self._tasks.items():
            if node in gone:
                task.cancel()

    def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    def is_cancelled(self, node: NodeId) -> bool:
        """Whether the node's work was cancelled, so that none may be started for it."""
        return node in self._cancelled
