"""Merges several async streams into one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from flashedge.runtime.drive.task_groups import raise_first_error

T = TypeVar("T")


async def merge_streams(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """Yield the items of all streams as they arrive.

    The first error ends all streams, and closing the merged one closes all. A single stream is
    passed through without a task or a queue.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    queue: asyncio.Queue[T | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    queue.put_nowait(item)
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        with raise_first_error():
            open_streams = len(tasks)
            while open_streams:
                got = await queue.get()
                if got is not None:
                    yield got
                    continue
                open_streams -= 1
                for task in tasks:
                    if task.done() and not task.cancelled() and task.exception():
                        await task
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
