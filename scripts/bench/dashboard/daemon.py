"""A daemon that serves a made-up search through the product's own event log and stream."""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncGenerator

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import Response

from flashedge import events
from flashedge.api.sse import EventStream, frame
from flashedge.events import Event, to_json
from flashedge.runtime.records.event_log import EventLog
from flashedge.types import NodeId
from scripts.bench.dashboard.story import levels

DEPTH, AT_ONCE = 10, 6
PROGRESS_EVERY = 6
VIEW = {"running": 512, "waiting": 0, "blocks_used": 900, "blocks_total": 2047}
VIEW |= {"quota_blocks": 2047, "block_tokens": 32, "block_bytes": 131072, "preemptions": 0}


class Stage:
    """The runs, one after the other. `sent` has the monotonic time at which each paced event was
    appended."""

    def __init__(self, n: int, per_s: float) -> None:
        self.n, self.per_s = n, per_s
        self.logs: dict[str, EventLog] = {}
        self.status: dict[str, str] = {}
        self.sent: dict[str, dict[int, float]] = {}
        self.late_s = 0.0

    async def play(self) -> None:
        for number in itertools.count(1):
            await self._run(f"run-{number}", number)

    async def _run(self, run: str, seed: int) -> None:
        log = self.logs[run] = EventLog()
        self.status[run], sent = "running", self.sent.setdefault(run, {})
        log.append(events.RunStarted(config={"thresholds": {"entropy": 0.8}}, queue_s=0.0))
        story = levels(self.n, DEPTH, seed)
        for batch in itertools.islice(story, AT_ONCE):
            for event in batch:
                log.append(event)
        growing: dict[NodeId, int] = {}
        due = time.monotonic()
        for beats, event in enumerate(itertools.chain.from_iterable(story), start=1):
            if beats % PROGRESS_EVERY == 0 and growing:
                growing = {node: tokens + 2 for node, tokens in growing.items()}
                log.append(events.Progress(tokens=tuple(growing.items())))
                due = await self._pace(due)
            self._grow(growing, event)
            sent[log.last + 1] = time.monotonic()
            log.append(event)
            due = await self._pace(due)
        log.append(events.RunFinished(result={"answer": "46", "choice": 1, "certainty": 1.0}))
        self.status[run] = "finished"

    def _grow(self, growing: dict[NodeId, int], event: Event) -> None:
        if isinstance(event, events.NodesExpanded):
            growing.update((node, 1) for node, _, _ in event.children)
        elif isinstance(event, events.StepCompleted):
            growing.pop(event.node, None)

    async def _pace(self, due: float) -> float:
        due += 1 / self.per_s
        self.late_s = max(self.late_s, time.monotonic() - due)
        await asyncio.sleep(max(due - time.monotonic(), 0))
        return due


def app_of(stage: Stage) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/status")
    async def status() -> dict[str, object]:
        engine = {"state": "ready", "restarts": 0, "view": VIEW}
        return {
            "version": "0",
            "state": "ready",
            "pair": "made up",
            "engines": {"generator": engine, "verifier": engine},
            "runs": {"running": 1, "queued": 0},
        }

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"data": [{"id": "made up"}, {"id": "made up:beam"}]}

    @app.get("/v1/runs")
    async def runs() -> dict[str, object]:
        rows = [{"id": r, "status": s, "n": stage.n} for r, s in stage.status.items()]
        return {"data": [{**r, "strategy": "beam", "problem": "-"} for r in rows[::-1]][:50]}

    @app.get("/v1/runs/{run}/events")
    async def follow(request: Request, run: str) -> Response:
        after = int(request.headers.get("last-event-id") or 0)

        async def source() -> AsyncGenerator[bytes]:
            async for seq, event in stage.logs[run].follow(after):
                yield frame(to_json(event), event=type(event).__name__, id=seq)

        return EventStream(source())

    @app.get("/sent")
    async def sent() -> dict[str, object]:
        return {"sent": stage.sent, "late_s": stage.late_s}

    return app


async def main(port: int, n: int, per_s: float) -> None:
    stage = Stage(n, per_s)
    config = uvicorn.Config(app_of(stage), port=port, log_level="warning", access_log=False)
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(stage.play())
        await uvicorn.Server(config).serve()
        playing.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
