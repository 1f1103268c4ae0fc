"""Starts engine processes with what the daemon gives them, and receives the stages of their start.

An engine is forked from a server that has imported vLLM, or spawned where that does not work. vLLM
makes the process deep inside a call, so what the daemon gives it is set in the context of the call
and travels with the process object. A start on a card can take minutes, so the process sends
a message through a pipe whenever it begins another stage (`inside.start_stages`).

Cards are shown by CUDA_VISIBLE_DEVICES. A spawned process inherits the daemon's environment. Two
engines start at once in two threads, so the variable is changed under a lock and only while vLLM
reads an engine's options and while its process is spawned. A forked process gets the environment of
the fork server. So it sets the variable itself before it uses CUDA, and with it vLLM's own
variables, some of which vLLM sets while it reads an engine's options.

vLLM's own option `device_ids` would leave all cards visible. vLLM 0.32 then takes the compute
capability of the first card for the engine's, and chooses wrong kernels where the cards differ.
"""

import asyncio
import contextlib
import copy
import multiprocessing
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from flashedge.engine.platform import runs_on_cpu
from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import VISIBLE_DEVICES, read_cards

_PRELOAD = "flashedge.engine.vllm.inside.preload"
FORK_ERRORS = (
    "Cannot re-initialize CUDA in forked subprocess",
    "initialization error",
    "CUDA driver initialization failed",
)
"""Parts of torch's errors in a process that was forked after its parent had used CUDA."""
_forks_failed = False
_cards_lock = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSetup:
    """What a process that starts in this context gets from the daemon."""

    cards: str | None = None
    """CUDA_VISIBLE_DEVICES of the process. None leaves it as the daemon's."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the process object, which is sent to the process."""
    receive: Callable[[Any], None] = lambda process: None
    """Called with the process before it starts. What it raises ends the start."""


_setup: ContextVar[ProcessSetup] = ContextVar("_setup", default=ProcessSetup())  # noqa: B039 - frozen


@contextlib.contextmanager
def set_up(setup: ProcessSetup) -> Iterator[None]:
    """Give `setup` to processes that the block starts, also by `asyncio.to_thread`."""
    token = _setup.set(setup)
    try:
        yield
    finally:
        _setup.reset(token)


@contextlib.contextmanager
def receive_stages(on_stage: Callable[[str], None]) -> Iterator[Connection]:
    """Call `on_stage` for each message that comes through a pipe. Yields its writing end."""
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
    with reader, writer:
        try:
            yield writer
        finally:
            receive()
            loop.remove_reader(reader.fileno())


@contextlib.contextmanager
def show_cards() -> Iterator[None]:
    """Set CUDA_VISIBLE_DEVICES within the block to the setup's cards. Other threads wait for it."""
    value = _setup.get().cards
    with _cards_lock:
        before = os.environ.get(VISIBLE_DEVICES)
        if value is not None:
            os.environ[VISIBLE_DEVICES] = value
        try:
            yield
        finally:
            if value is not None and before is None:
                del os.environ[VISIBLE_DEVICES]
            elif value is not None:
                os.environ[VISIBLE_DEVICES] = str(before)


def apply_setup(context: BaseContext) -> BaseContext:
    """Return a copy of `context` whose processes get the setup that is in force."""
    wrapped: Any = copy.copy(context)

    def make_process(**options: Any) -> Any:
        setup = _setup.get()
        values = {name: v for name, v in os.environ.items() if name.startswith("VLLM_")}
        if setup.cards is not None:
            values[VISIBLE_DEVICES] = setup.cards
        options["target"] = partial(_run_with_variables, values, options["target"])
        process = context.Process(**options)  # type: ignore[attr-defined]
        for name, value in setup.attributes.items():
            setattr(process, name, value)
        setup.receive(process)

        def start() -> None:
            del process.start  # this function can't be pickled with the process's other attributes
            with show_cards():
                process.start()

        process.start = start
        return process

    wrapped.Process = make_process
    return wrapped  # type: ignore[no-any-return]


def _run_with_variables(
    values: Mapping[str, str], target: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    os.environ.update(values)
    return target(*args, **kwargs)


def start_fork_server() -> None:
    """Start the process that imports vLLM once and from which engines are forked.

    A fork saves an engine the import, which takes seconds, and some 25 with a card. It is safe
    where a fork of the daemon is not: the server has one thread, no event loop and no sockets, and
    never uses CUDA. It imports while the daemon goes on.
    """
    if choose_start_method() == "forkserver":
        multiprocessing.set_forkserver_preload([_PRELOAD])
        forkserver.ensure_running()


def choose_start_method() -> str:
    """Choose "forkserver", or "spawn", which imports vLLM again.

    A spawn is needed under WSL, whose CUDA does not work after a fork, and where the machine has
    cards of several kinds: vLLM's modules remember the compute capability of the first card that
    they see, and in the server that may be another engine's.
    """
    if runs_on_cpu():
        return "forkserver"
    if _forks_failed or "microsoft" in platform.uname().release.lower():
        return "spawn"
    try:
        kinds = {card.capability for card in read_cards()}
    except ProfileError:
        return "spawn"
    return "forkserver" if len(kinds) == 1 else "spawn"


def give_up_forks(error: str) -> bool:
    """Spawn engines from now on if a forked engine's error shows that CUDA does not work after a
    fork here. Returns whether it shows that."""
    global _forks_failed
    fails = not runs_on_cpu() and any(text in error for text in FORK_ERRORS)
    _forks_failed |= fails
    return fails


def get_mp_context() -> BaseContext:
    """Stand for vLLM's function of this name in the daemon."""
    return apply_setup(multiprocessing.get_context(choose_start_method()))
