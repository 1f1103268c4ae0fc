"""Speculative beam extension as the runtime sees it: calls into the generator's engine process.

What is drawn, when, and who takes it over is decided in the engine's scheduler (`speculation`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flashedge.engine.base import WholeDraft
from flashedge.engine.vllm.process import EngineProcess
from flashedge.errors import EngineDead
from flashedge.scheduling.speculation.slots import FollowUp
from flashedge.types import Granularity


class VllmSpeculator:
    """Implements `engine.base.Speculator`.

    flat_batch: told to the engine with each level, so it outlives a restart.
    """

    def __init__(self, process: EngineProcess) -> None:
        self.flat_batch = 0
        self._process = process
        self._drawn: dict[str, dict[int | None, int]] = {}  # by run and process, as last heard

    async def whole_drafts(self, run: str) -> tuple[WholeDraft, ...]:
        found = await self._call("whole_drafts", run) or ()
        return tuple(WholeDraft(seed=seed, token_ids=tuple(ids)) for seed, ids in found)

    async def keep(self, run: str, level: int, seeds: Collection[int]) -> None:
        await self._count(run, "keep_drafts", run, level, list(seeds), self.flat_batch)

    async def end(self, run: str) -> int:
        """See `engine.base`. Of a process that died, what it had drawn when the last level began
        counts."""
        await self._count(run, "end_drafts", run)
        return sum(self._drawn.pop(run, {}).values())

    async def counters(self) -> Mapping[str, int]:
        """Of the process since its start; see `HoldingScheduler.counters`. Raises EngineDead."""
        counters: Mapping[str, int] = await self._process.call("speculation")
        return counters

    async def _count(self, run: str, method: str, *args: Any) -> None:
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


def follow_up_args(follow_up: FollowUp) -> dict[str, Any]:
    """`follow_up` as a request's parameters carry it."""
    return {
        "run": follow_up.run,
        "level": follow_up.level,
        "seeds": list(follow_up.seeds),
        "max_tokens": follow_up.granularity.max_tokens,
        "to_end": follow_up.granularity.to_end,
        "potential": follow_up.potential,
    }


def follow_up_of(args: Mapping[str, Any]) -> FollowUp:
    """The inverse of `follow_up_args`."""
    return FollowUp(
        run=args["run"],
        level=args["level"],
        seeds=tuple(args["seeds"]),
        granularity=Granularity(max_tokens=args["max_tokens"], to_end=args["to_end"]),
        potential=args["potential"],
    )
