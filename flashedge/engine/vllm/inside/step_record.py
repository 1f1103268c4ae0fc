"""What an engine process is doing, in memory that the daemon can read after the process's death.

Before each engine step the process writes which requests are in it, and after the step that it is
over. The daemon shares the memory and reads the record when the process has ended or hangs:
requests of the unfinished step may be what ended it, and all others are innocent.
"""

import ctypes
import logging
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flashedge.engine.vllm.inside.keys import STEP_RECORD

FATAL_ERROR = "EngineCore encountered a fatal error."
FATAL = ("EngineCore failed to start.", FATAL_ERROR)
"""vLLM logs the error that ends an engine process in a record that begins like one of these."""
SHORTAGES = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of the RuntimeErrors that PyTorch raises, besides OutOfMemoryError, if memory is short."""
FAULT_BYTES, NAMES_BYTES = 1000, 130_000
"""Room for an error's text, and for the names of some 6,000 requests. If a step's names are
longer, any request counts as its cause."""
ANY = b"*"
"""Stands for the names where any request may be in the step."""


class _Shared(ctypes.Structure):
    """The memory that both processes see."""

    _fields_ = (
        ("progress", ctypes.c_uint64),
        ("is_in_step", ctypes.c_bool),
        ("is_memory_short", ctypes.c_bool),
        ("tokens", ctypes.c_uint32),
        ("fault", ctypes.c_char * FAULT_BYTES),
        ("names", ctypes.c_char * NAMES_BYTES),
    )


RECORD_BYTES = ctypes.sizeof(_Shared)


class StepRecord:
    def __init__(self, memory: Any) -> None:
        """memory: a writable buffer of `RECORD_BYTES`, which begins as zeros."""
        self._shared = _Shared.from_buffer(memory)

    # ------------------------------------------------------------ for the engine process

    def begin_step(self, requests: Iterable[str] | None, tokens: int = 0) -> None:
        """Write that a step with these requests and tokens begins. None stands for any request."""
        # Clients choose names. A newline would end one, and a zero byte the field.
        parts = (name.replace("\n", "\0") for name in requests or ())
        names = ANY if requests is None else "\n".join(parts).encode()
        self._shared.names = names if len(names) <= NAMES_BYTES and b"\0" not in names else ANY
        self._shared.tokens, self._shared.is_in_step = tokens, True
        self.note_progress()

    def end_step(self) -> None:
        self.note_progress()  # first, so that nobody sees a long step's end before its progress
        self._shared.tokens, self._shared.is_in_step = 0, False

    def note_progress(self) -> None:
        """Count a sign of life. Work that can take long outside a step calls it now and then."""
        self._shared.progress += 1

    def note_fault(self, error: BaseException) -> None:
        root = find_root(error)
        text = f"{type(root).__name__}: {root}".encode(errors="replace")
        self._shared.fault = text[:FAULT_BYTES]
        self._shared.is_memory_short = is_memory_short(root)

    # ------------------------------------------------------------ for the daemon

    @property
    def progress(self) -> int:
        return int(self._shared.progress)

    @property
    def is_in_step(self) -> bool:
        return bool(self._shared.is_in_step)

    @property
    def tokens(self) -> int:
        """The tokens of the unfinished steps, or 0."""
        return int(self._shared.tokens)

    @property
    def is_memory_short(self) -> bool:
        return bool(self._shared.is_memory_short)

    @property
    def fault(self) -> str | None:
        """The first line of the error that ended the process, or None if none was written."""
        text = self._shared.fault.decode(errors="replace").strip()
        return text.splitlines()[0] if text else None

    def holds(self, request: str) -> bool:
        """Whether this request is in an unfinished step. vLLM appends a hyphen and eight
        hexadecimal digits to its name."""
        names = self._shared.names
        if not self.is_in_step or names == ANY:
            return self.is_in_step
        return any(request in (n, n.rpartition("-")[0]) for n in names.decode().split("\n"))


class StepsInFlight:
    """Writes which scheduled steps have not ended: one, or two of an asynchronous engine."""

    def __init__(self, find_name: Callable[[str], str | None]) -> None:
        """find_name: returns the daemon's name for one of vLLM's requests, None for a draft."""
        self._record, self._find_name = get_step_record(), find_name
        self._steps: deque[tuple[tuple[str, ...], int]] = deque()

    @contextmanager
    def blame(self, request: str) -> Iterator[None]:
        """Count a request as in flight while it is added, since that may already end the engine."""
        self._write((request,))
        yield  # on an error the request stays in the record, for the daemon to read
        self._write()

    def begin(self, request_ids: Iterable[str], tokens: int) -> None:
        self._steps.append((tuple(request_ids), tokens))
        self._write()

    def end(self) -> None:
        self._steps.popleft()
        self._write()

    def blame_any(self) -> None:
        """Write that any request may be why a step can't be scheduled."""
        self._record.begin_step(None)

    def _write(self, more: tuple[str, ...] = ()) -> None:
        if not (self._steps or more):
            self._record.end_step()
            return
        found = (self._find_name(each) for step, _ in self._steps for each in step)
        names = dict.fromkeys((*more, *filter(None, found)))
        self._record.begin_step(names, sum(tokens for _, tokens in self._steps))


def find_root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def is_memory_short(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in SHORTAGES)


class FaultHandler(logging.Handler):
    """Copies the error that ends this process from vLLM's log to the step record."""

    def __init__(self, step_record: StepRecord) -> None:
        super().__init__(logging.ERROR)
        self._step_record = step_record

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(record.msg).startswith(FATAL):
            self._step_record.note_fault(error)


_own: StepRecord | None = None


def get_step_record() -> StepRecord:
    """Return this process's record. Without a daemon that reads it, it is in private memory."""
    global _own
    if _own is None:
        memory = getattr(multiprocessing.current_process(), STEP_RECORD, None)
        _own = StepRecord(bytearray(RECORD_BYTES) if memory is None else memory)
        if memory is not None:
            logging.getLogger("vllm").addHandler(FaultHandler(_own))
    return _own
