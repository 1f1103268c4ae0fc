"""Faults of the engines under two runs, again and again, and what became of the runs."""

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from scripts.bench.foundation.shortage_trigger import find_trigger

ENGINES = ("generator", "verifier")
OVER = ("finished", "failed", "cancelled", "interrupted")
RUN_S = 600.0
"""A run that is not over by then counts as lost."""
SETTLE_S = 10.0
"""KV blocks that are held so long after the last run are leaked."""
MOVES, MOVABLE = "killed while KV moves", {"os", "device"}
"""A fault that happens only where each `kv_memory` (`engine.base.Health`) is one of these."""
LEVELS = 3
"""A fault happens in one of the first levels of a run."""
TRIES = 4
"""A run may be over before the fault hits it. Then the next one is tried, so often."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """The outcomes of one kind of fault."""

    times: int = 0
    missed: int = 0
    """Faults that found no run in the wanted phase."""
    runs: int = 0
    lost: list[str] = field(default_factory=list)
    """Errors of the runs that did not finish. No run is the cause of any fault here."""
    other_trees: int = 0
    """Runs whose tree is not the one without a fault."""
    leaked_blocks: int = 0
    again_s: list[float] = field(default_factory=list)
    """Seconds from the fault until the daemon is ready again."""

    def to_json(self) -> dict[str, Any]:
        again = sorted(self.again_s)
        return {
            "times": self.times,
            "missed": self.missed,
            "runs": self.runs,
            "lost": len(self.lost),
            "errors": sorted(set(self.lost)),
            "other_trees": self.other_trees,
            "leaked_blocks": self.leaked_blocks,
            "serves_again_s": {
                "median": round(statistics.median(again), 2),
                "max": round(again[-1], 2),
            }
            if again
            else None,
        }


class FaultSchedule:
    """Drives a `frail_daemon` and does harm to its engines."""

    def __init__(self, url: str, problems: Sequence[str], n: int) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=60)
        self._bodies = [{"problem": p, "n": n, "seed": seed} for seed, p in enumerate(problems)]
        self._expected: list[Any] = []
        self._numbers = itertools.count()
        self._draw = random.Random(0)
        self._pids: dict[str, int] = {}
        self.faults: Mapping[str, Callable[[str], Awaitable[bool]]] = {
            "stopped": self._stop_engine,
            "killed while generating": self._kill_generating,
            "killed while scoring": self._kill_scoring,
            "killed while idle": self._kill_idle,
            MOVES: self._kill_mover,
            "out of memory": self._run_out_of_memory,
        }

    async def close(self) -> None:
        await self._client.aclose()

    async def prepare(self) -> None:
        """Make the trees that all runs are compared with. Leave out what can't happen here."""
        kinds = {engine["kv_memory"] for engine in (await self._read_engines()).values()}
        if not kinds <= MOVABLE:
            self.faults = {k: fault for k, fault in self.faults.items() if k != MOVES}
        for body in self._bodies:
            run = await self._wait_over(await self._submit(body))
            if run["status"] != "finished":
                raise RuntimeError(f"a run without a fault: {run.get('error')}")
            self._expected.append(run["tree"])

    async def repeat(self, name: str, times: int) -> Tally:
        """Let a fault happen so often, each time under two runs."""
        tally = Tally()
        for _ in range(times):
            for _ in range(TRIES):
                if await self._try_once(name, tally):
                    break
                tally.missed += 1
            print(f"{name}: {json.dumps(tally.to_json())}", flush=True)
        return tally

    async def _try_once(self, name: str, tally: Tally) -> bool:
        """Two runs and one fault. Returns whether the fault hit."""
        number = next(self._numbers)
        chosen = [(number + i) % len(self._bodies) for i in range(2)]
        engines = await self._read_engines()
        restarts = sum(engine["restarts"] for engine in engines.values())
        self._pids = {name: engine["pid"] for name, engine in engines.items()}
        runs = [await self._submit(self._bodies[i]) for i in chosen]
        hit = await self.faults[name](runs[0])
        began = time.monotonic()
        if hit:
            await self._wait_served(restarts)
            tally.again_s.append(time.monotonic() - began)
            tally.times += 1
        for index, run_id in zip(chosen, runs, strict=True):
            run = await self._wait_over(run_id)
            tally.runs += 1
            if run["status"] != "finished":
                tally.lost.append(f"{run['status']}: {run.get('error')}")
            elif run["tree"] != self._expected[index]:
                tally.other_trees += 1
        tally.leaked_blocks += await self._count_leaked()
        return bool(hit)

    # ------------------------------------------------------------ faults

    async def _stop_engine(self, run: str) -> bool:
        """SIGSTOP, as a driver that blocks would: nothing ends, nothing goes on."""
        engine = self._draw.choice(ENGINES)
        return await self._signal(run, engine, at_work=True, number=signal.SIGSTOP)

    async def _kill_generating(self, run: str) -> bool:
        return await self._signal(run, "generator", at_work=True)

    async def _kill_scoring(self, run: str) -> bool:
        return await self._signal(run, "verifier", at_work=True)

    async def _kill_idle(self, run: str) -> bool:
        """Kill the engine that the run does not use at the moment."""
        return await self._signal(run, self._draw.choice(ENGINES), at_work=False)

    async def _signal(
        self, run: str, engine: str, *, at_work: bool, number: signal.Signals = signal.SIGKILL
    ) -> bool:
        """Send the signal while the run generates a level, or while it scores one."""
        generates = (engine == "generator") is at_work
        if not await self._wait_phase(run, generates=generates):
            return False
        os.kill(self._pids[engine], number)
        return True

    async def _kill_mover(self, run: str) -> bool:
        """Kill either engine when one was just offloaded and the other gets its memory."""
        if not await self._wait_event(run, lambda event: event["type"] == "Offloaded"):
            return False
        os.kill(self._pids[self._draw.choice(ENGINES)], signal.SIGKILL)
        return True

    async def _run_out_of_memory(self, run: str) -> bool:
        """The generator's next step raises what PyTorch raises on a full card."""
        if not await self._wait_phase(run, generates=True):
            return False
        trigger = find_trigger(self._pids["generator"])
        trigger.touch()
        while trigger.exists():
            if not await self._count_running():
                trigger.unlink(missing_ok=True)
                return False
            await asyncio.sleep(0.005)
        return True

    # ------------------------------------------------------------ phases of a run

    async def _wait_phase(self, run: str, *, generates: bool) -> bool:
        """Wait until one of the first levels begins to be generated, or to be scored."""
        depth, level = self._draw.randint(1, LEVELS), set[int]()

        def is_reached(event: dict[str, Any]) -> bool:
            if event["type"] == "NodesExpanded" and event["depth"] == depth:
                level.update(node for node, *_ in event["children"])
                return generates
            if event["type"] == "StepCompleted" and event["node"] in level:
                level.discard(event["node"])
                return not level and not generates
            return False

        return await self._wait_event(run, is_reached)

    async def _wait_event(self, run: str, is_wanted: Callable[[dict[str, Any]], bool]) -> bool:
        """Wait until the run emits a wanted event. Returns whether it did before it was over."""
        async with self._client.stream("GET", f"/v1/runs/{run}/events") as source:
            async for line in source.aiter_lines():
                if line.startswith("data: ") and is_wanted(json.loads(line.removeprefix("data: "))):
                    return True
        return False

    # ------------------------------------------------------------ the daemon

    async def _get(self, path: str) -> Any:
        return (await self._client.get(path)).json()

    async def _read_engines(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self._get("/v1/status"))["engines"]
        return found

    async def _count_running(self) -> int:
        return int((await self._get("/v1/status"))["runs"]["running"])

    async def _submit(self, body: dict[str, Any]) -> str:
        answer = await self._client.post("/v1/runs", json=body)
        answer.raise_for_status()
        return str(answer.json()["id"])

    async def _wait_over(self, run_id: str) -> dict[str, Any]:
        until = time.monotonic() + RUN_S
        while True:
            run: dict[str, Any] = await self._get(f"/v1/runs/{run_id}")
            if run["status"] in OVER or time.monotonic() > until:
                return run
            await asyncio.sleep(0.02)

    async def _wait_served(self, restarts: int) -> None:
        """Wait until the daemon is ready, with more restarts than before."""
        while True:
            health = await self._get("/health")
            now = sum(engine["restarts"] for engine in health["engines"].values())
            if health["status"] == "ready" and now > restarts:
                return
            await asyncio.sleep(0.02)

    async def _count_leaked(self) -> int:
        """KV blocks that are held although no run is left."""
        until = time.monotonic() + SETTLE_S
        while True:
            views = [engine["view"] for engine in (await self._read_engines()).values()]
            held = sum(view["blocks_used"] for view in views if view) if all(views) else 1
            if not held or time.monotonic() > until:
                return held
            await asyncio.sleep(0.05)
