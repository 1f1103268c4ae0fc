"""Tells the daemon what this engine process does while it starts.

The stages are read from the records of vLLM's log and from the bars of `tqdm`. Neither is shown:
only errors reach the daemon's log. Checked with vLLM 0.32.0.
"""

import contextlib
import copy
import logging
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

from vllm.utils import system_utils

from flashedge.engine.vllm.inside.keys import STAGES_PIPE

_get_stock_context = system_utils.get_mp_context
FIRST_WORKER = "VllmWorker-0"  # the name that vLLM gives its process
STAGES = {
    "Starting to load model ": "loading the weights",
    "Model loading took ": "running the model once",
    "%sStarting torch.compile": "compiling the model",
    "%sUsing cache directory: ": "compiling the model",
    "%sDynamo bytecode transform time: ": "compiling the model",
    "%sCompiling a graph for compile range ": "compiling the model",
    "%storch.compile took ": "running the model once",
    "%sDirectly load AOT compilation from path ": "loading the compiled model",
    "%sInitial profiling/warmup run took ": "allocating KV memory",
    "Initial free memory ": "allocating KV memory",
    "Compile and warming up model for size ": "compiling the model",
    "JIT kernel warmup starting.": "compiling kernels",
    "JIT kernel warmup finished in ": "preparing graphs",
    "Graph capturing finished in ": "testing the sampler",
    "init engine (profile, create kv cache, warmup model) took ": "making the scheduler",
}
"""The stage that starts when vLLM logs a record, by the beginning of the record's format string."""
BARS = {"Loading ": "loading the weights", "Capturing CUDA graphs ": "capturing graphs"}
"""The stage while a bar is drawn, by the beginning of the bar's description."""


class StageHandler(logging.Handler):
    """Sends the stages that vLLM's log tells."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.INFO)
        self._pipe = pipe
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        for beginning, stage in STAGES.items():
            if str(record.msg).startswith(beginning):
                self.send(stage)

    def send(self, stage: str) -> None:
        """Send a stage unless it is the last one sent. Drop it if the pipe is full or closed."""
        if stage != self._last:
            self._last = stage
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(stage.encode())


_handler: StageHandler | None = None
_level = logging.NOTSET


def begin() -> None:
    """Start to send stages, if the daemon gave this process a pipe for them."""
    global _handler, _level
    pipe = getattr(multiprocessing.current_process(), STAGES_PIPE, None)
    if pipe is None or _handler is not None:
        return
    vllm = logging.getLogger("vllm")
    _handler, _level = StageHandler(pipe), vllm.level
    vllm.addHandler(_handler)
    vllm.setLevel(min(_level, logging.INFO))  # vLLM's own handler keeps its level


def get_mp_context() -> BaseContext:
    """Stand in for vLLM's function: let the first of several workers send its stages too. The
    others do the same work at the same time."""
    context = _get_stock_context()
    pipe = getattr(multiprocessing.current_process(), STAGES_PIPE, None)
    if pipe is None:
        return context  # type: ignore[no-any-return]
    reporting: Any = copy.copy(context)

    def make_process(**options: Any) -> Any:
        process = context.Process(**options)
        if options.get("name") == FIRST_WORKER:
            setattr(process, STAGES_PIPE, pipe)  # pickled with the process's other attributes
        return process

    reporting.Process = make_process
    return reporting  # type: ignore[no-any-return]


def end() -> None:
    global _handler
    if _handler is not None:
        vllm = logging.getLogger("vllm")
        vllm.removeHandler(_handler)
        vllm.setLevel(_level)
        _handler = None


def report_bar(self: Any, msg: Any = None, pos: Any = None) -> bool:
    """Stand in for tqdm's `display`: send the progress of a known bar, and draw none."""
    for beginning, stage in BARS.items():
        if _handler is not None and str(self.desc).startswith(beginning):
            _handler.send(f"{stage} ({self.n} of {self.total})" if self.total else stage)
    return True
