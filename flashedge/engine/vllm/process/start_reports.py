"""What a starting engine process does, received from `inside.start_stages` through a pipe.

A start on a card can take minutes, most of them inside vLLM. Its process writes a line into the
pipe whenever it begins another stage. The daemon shows the latest line.

vLLM makes the process deep inside a call. What the daemon wants to give it, such as this pipe, is
therefore set in the context of the call, and travels as attributes of the process's object.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from multiprocessing.context import BaseContext
from typing import Any

from flashedge.engine.vllm.inside.keys import STAGES_PIPE

_carried: ContextVar[Mapping[str, Any]] = ContextVar("_carried")
"""The attributes that a process gets which starts in this context."""

_receive: ContextVar[Callable[[Any], None]] = ContextVar("_receive")
"""Receives the object of a process that is about to start in this context."""


@contextlib.contextmanager
def receive_process(receive: Callable[[Any], None]) -> Iterator[None]:
    """Call `receive` with each process within the block before it starts. What it raises ends the
    start."""
    token = _receive.set(receive)
    try:
        yield
    finally:
        _receive.reset(token)


@contextlib.contextmanager
def carry(**attributes: Any) -> Iterator[None]:
    """Give these attributes to the processes that start within the block."""
    token = _carried.set({**_carried.get({}), **attributes})
    try:
        yield
    finally:
        _carried.reset(token)


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
    try:
        with carry(**{STAGES_PIPE: writer}):
            yield
    finally:
        receive()
        loop.remove_reader(reader.fileno())
        reader.close()
        writer.close()


def report_starts(context: BaseContext) -> BaseContext:
    """Let the processes of `context` have what `carry` gives them, and `receive_process` see them
    first."""
    attributes, receive = _carried.get({}), _receive.get(None)
    if not attributes:
        return context
    reporting: Any = copy.copy(context)

    def make_process(**options: Any) -> Any:
        process = context.Process(**options)  # type: ignore[attr-defined]
        for name, value in attributes.items():
            setattr(process, name, value)  # sent with the process's other attributes
        if receive is not None:
            receive(process)
        return process

    reporting.Process = make_process
    return reporting  # type: ignore[no-any-return]
