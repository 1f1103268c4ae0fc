"""Shows an engine's process its cards, by CUDA_VISIBLE_DEVICES in its environment.

A process that is spawned gets the environment of the daemon at that moment. Two engines start at
once in two threads of the daemon, so the variable is changed under a lock and only for a moment:
while vLLM reads an engine's options, and while its process is spawned. A process that is forked
gets the environment of the fork server, and sets the variable itself before it uses CUDA. It also
sets vLLM's variables as they are then, since vLLM sets some while it reads an engine's options.

We do not use vLLM's own option `device_ids`. It leaves all cards visible to the engine, and vLLM
0.32 then takes the compute capability of the first visible card for that of the engine's card, so
that the wrong kernels are chosen on a machine with two kinds of cards.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from flashedge.profiler.gpu import VARIABLE

_lock = threading.RLock()
_shown: ContextVar[str | None] = ContextVar("_shown", default=None)
"""What the processes that start in this context see."""


@contextlib.contextmanager
def choose_cards(value: str | None) -> Iterator[None]:
    """Let processes that start in the block see the cards `value`. None: those of the daemon."""
    token = _shown.set(value)
    try:
        yield
    finally:
        _shown.reset(token)


@contextlib.contextmanager
def show_cards() -> Iterator[None]:
    """Set the variable in the block to what `choose_cards` chose. Other threads wait."""
    value = _shown.get()
    with _lock:
        before = os.environ.get(VARIABLE)
        if value is not None:
            os.environ[VARIABLE] = value
        try:
            yield
        finally:
            if value is not None and before is None:
                del os.environ[VARIABLE]
            elif value is not None:
                os.environ[VARIABLE] = str(before)


def _run_with_variables(
    values: Mapping[str, str], target: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """What a process runs."""
    os.environ.update(values)
    return target(*args, **kwargs)


def show_cards_at_start(context: BaseContext) -> BaseContext:
    """Let the processes of `context` start with the cards that `choose_cards` chose."""
    showing: Any = copy.copy(context)

    def make_process(**options: Any) -> Any:
        values = {k: v for k, v in os.environ.items() if k.startswith("VLLM_")}
        if (value := _shown.get()) is not None:
            values[VARIABLE] = value
        options["target"] = partial(_run_with_variables, values, options["target"])
        process = context.Process(**options)  # type: ignore[attr-defined]

        def start() -> None:
            del process.start  # it must not travel with the process's other attributes
            with show_cards():
                process.start()

        process.start = start
        return process

    showing.Process = make_process
    return showing  # type: ignore[no-any-return]
