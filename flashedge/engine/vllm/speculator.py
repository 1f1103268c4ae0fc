"""The drafts in the generator's engine process, as the runtime sees them.

The engine's scheduler (`inside/speculation.py`) decides what is drafted, and which requests adopt
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flashedge.engine.base import CompleteDraft
from flashedge.engine.vllm.process.engine_process import EngineProcess
from flashedge.errors import EngineDead
from flashedge.scheduling.speculation.continuation import Continuation
from flashedge.types import Granularity


class VllmSpeculator:
    """Implements `engine.base.Speculator`."""

    def __init__(self, process: EngineProcess) -> None:
        self.flat_batch = 0
        """Sent to the engine with each level, so that it survives a restart."""
        self._process = process
        self._drawn: dict[str, dict[int | None, int]] = {}  # by run and process, last reported

    async def list_complete(self, run: str) -> tuple[CompleteDraft, ...]:
        found = await self._call("list_complete_drafts", run) or ()
        return tuple(CompleteDraft(seed=seed, token_ids=tuple(ids)) for seed, ids in found)

    async def drop_unused(self, run: str, levels: Collection[int], seeds: Collection[int]) -> None:
        args = (run, list(levels), list(seeds), self.flat_batch)
        await self._call_and_count(run, "drop_unused_drafts", *args)

    async def end_run(self, run: str) -> int:
        """See `engine.base`. Of a process that died, only the tokens that it had drawn when the
        last level began are counted."""
        await self._call_and_count(run, "end_run", run)
        return sum(self._drawn.pop(run, {}).values())

    async def counters(self) -> Mapping[str, int]:
        """Of the current process; see `inside.paused_requests.COUNTERS`. Raises EngineDead."""
        counters: Mapping[str, int] = await self._process.call("speculation")
        return counters

    async def _call_and_count(self, run: str, method: str, *args: Any) -> None:
        """Call a method that returns the draft tokens drawn for the run, and keep their count."""
        process = self._process.pid
        drawn = await self._call(method, *args)
        if drawn is not None:
            self._drawn.setdefault(run, {})[process] = drawn

    async def _call(self, method: str, *args: Any) -> Any:
        """None when the engine is dead."""
        try:
            return await self._process.call(method, *args)
        except EngineDead:
            return None


def pack_continuation(continuation: Continuation) -> dict[str, Any]:
    """The form in which a request's parameters carry a continuation."""
    return {
        "run": continuation.run,
        "level": continuation.level,
        "seeds": list(continuation.seeds),
        "max_tokens": continuation.granularity.max_tokens,
        "to_end": continuation.granularity.to_end,
        "max_drafts": continuation.max_drafts,
        "step_rule": continuation.step_rule,
        "deterministic": continuation.deterministic,
    }


def unpack_continuation(args: Mapping[str, Any]) -> Continuation:
    """The inverse of `pack_continuation`."""
    return Continuation(
        run=args["run"],
        level=args["level"],
        seeds=tuple(args["seeds"]),
        granularity=Granularity(max_tokens=args["max_tokens"], to_end=args["to_end"]),
        max_drafts=args["max_drafts"],
        step_rule=args["step_rule"],
        deterministic=args["deterministic"],
    )
