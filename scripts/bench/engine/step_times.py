"""What an engine's steps take, measured inside its process, of any engine of vLLM.

Where FLASHEDGE_STEP_TIMES names a folder, each engine writes a file there: a line of JSON for each
step, whenever it has nothing left to do. The parts are those of a synchronous step; with
asynchronous scheduling they belong to two steps, and `interval` alone is the time of one.
"""

import functools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = "FLASHEDGE_STEP_TIMES"
PARTS: Mapping[str, tuple[str, ...]] = {
    "prepare": ("_update_states", "_prepare_inputs", "prepare_inputs", "update_requests"),
    "launch": ("_model_forward", "_run_model"),
    "sample": ("_sample", "sample"),
}
"""Methods of vLLM's runners, the first and the second one, by the part of a step that they do."""


class StepTimes:
    """Collects the steps of one engine."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.jsonl"
        self._steps: list[dict[str, float]] = []
        self._parts: defaultdict[str, float] = defaultdict(float)

    def time(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `method` to add its time to a part."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self._parts[part] += time.perf_counter() - began

        return call

    def watch(self, core: Any) -> None:
        """Time the steps of an engine core, whose parts are all there."""
        scheduler = core.scheduler
        schedule, update = scheduler.schedule, self.time("update", scheduler.update_from_output)

        def schedule_timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            output = schedule(*args, **kwargs)
            scheduled = output.num_scheduled_tokens
            if scheduled:
                self._close(began)
                self._steps.append(
                    {"began": began, "rows": len(scheduled), "tokens": sum(scheduled.values())}
                )
            self._parts["schedule"] += time.perf_counter() - began
            return output

        def update_timed(*args: Any, **kwargs: Any) -> Any:
            found = update(*args, **kwargs)
            if not scheduler.has_unfinished_requests():
                self._close(time.perf_counter())
                self._write()
            return found

        scheduler.schedule, scheduler.update_from_output = schedule_timed, update_timed
        worker = getattr(core.model_executor, "driver_worker", None)
        runner = getattr(getattr(worker, "worker", worker), "model_runner", None)
        for part, names in PARTS.items():
            for name in names:
                if hasattr(runner, name):
                    setattr(runner, name, self.time(part, getattr(runner, name)))

    def _close(self, now: float) -> None:
        """The step before has ended: what was timed since its beginning belongs to it."""
        if self._steps and "interval" not in self._steps[-1]:
            last = self._steps[-1]
            last |= {**self._parts, "interval": now - last["began"]}
        self._parts.clear()

    def _write(self) -> None:
        with self._file.open("a") as file:
            file.writelines(json.dumps(step) + "\n" for step in self._steps)
        self._steps.clear()


def record_steps() -> None:
    """Time the engines of this process from now on, if FLASHEDGE_STEP_TIMES asks for it."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    from vllm.v1.engine.core import EngineCore

    add = EngineCore.add_request
    if hasattr(add, "__wrapped__"):  # a plugin may be called again
        return

    # vLLM calls plugins while it builds the core; with the first request all parts are there.
    @functools.wraps(add)
    def add_first(self: Any, *args: Any, **kwargs: Any) -> None:
        StepTimes(Path(folder)).watch(self)
        EngineCore.add_request = add
        add(self, *args, **kwargs)

    EngineCore.add_request = add_first


def read_steps(folder: Path, since_s: float = 0.0) -> list[dict[str, float]]:
    """The steps of all engines that wrote there, since a time of `time.perf_counter`."""
    lines = (line for file in sorted(folder.glob("*.jsonl")) for line in file.open())
    return [step for step in map(json.loads, lines) if step["began"] >= since_s]


def summarize(steps: Iterable[Mapping[str, float]], rows: int) -> dict[str, float]:
    """Medians in milliseconds over the steps in which so many sequences each got one token.

    `rest`: what none of the parts takes, messages above all.
    """
    kept = [s for s in steps if s["rows"] == rows == s["tokens"] and "interval" in s]
    if not kept:
        return {}
    parts = ("schedule", *PARTS, "update")
    found = {p: 1e3 * statistics.median(s.get(p, 0.0) for s in kept) for p in (*parts, "interval")}
    rest = found["interval"] - sum(found[part] for part in parts)
    return {"steps": len(kept), **found, "rest": rest}
