"""What a starting engine process does, received from `inside.start_stages` through a pipe.

A start on a card can take minutes, most of them inside vLLM. Its process writes a line into the
pipe whenever it begins another stage. The daemon shows the latest line.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from flashedge.engine.vllm.inside.keys import STAGES_PIPE

_pipe: ContextVar[Connection | None] = ContextVar("_pipe", default=None)
"""The end that a process gets which starts in this context."""


@contextlib.contextmanager
def receive_stages(on_stage: Callable[[str], None]) -> Iterator[None]:
    """Call `on_stage` with each line of an engine process that starts within the block.

    A thread that starts the process must run in this context, as `asyncio.to_thread` lets it.
    """
    loop = asyncio.get_running_loop()
    reader, writer = multiprocessing.Pipe(duplex=False)
    os.set_blocking(writer.fileno(), False)  # a full pipe must not stop an engine

    def receive() -> None:
        try:
            while reader.poll():
                on_stage(reader.recv_bytes().decode())
        except (EOFError, OSError):
            loop.remove_reader(reader.fileno())

    loop.add_reader(reader.fileno(), receive)
    token = _pipe.set(writer)
    try:
        yield
    finally:
        _pipe.reset(token)
        receive()
        loop.remove_reader(reader.fileno())
        reader.close()
        writer.close()


def report_starts(context: BaseContext) -> BaseContext:
    """Let the processes of `context` carry the pipe of the surrounding `receive_stages`, if any."""
    pipe = _pipe.get()
    if pipe is None:
        return context
    reporting: Any = copy.copy(context)

    def make_process(**options: Any) -> Any:
        process = context.Process(**options)  # type: ignore[attr-defined]
        setattr(process, STAGES_PIPE, pipe)  # sent with the process's other attributes
        return process

    reporting.Process = make_process
    return reporting  # type: ignore[no-any-return]
