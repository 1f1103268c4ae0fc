"""Recorded runs and a scripted daemon for the dashboard's tests."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from flashedge import events
from flashedge.client.run_view import Numbered
from flashedge.errors import DaemonError, NotFound, RunInterrupted
from flashedge.tui.app import DashboardApp
from flashedge.tui.device import DeviceSample
from flashedge.types import STRATEGIES, NodeId
from tests.support.made_run import build_level, build_step
from tests.support.paths import DATA

BEAM, MCTS, BOOST = "recorded_run", "recorded_mcts", "recorded_boost"
DEVICE = DeviceSample(
    name="scripted GPU",
    utilization=0.87,
    memory_used_bytes=61 << 30,
    memory_total_bytes=141 << 30,
    power_w=512.0,
    power_limit_w=700.0,
    temperature_c=61.0,
)


@cache
def recorded(name: str = BEAM) -> tuple[dict[str, Any], list[tuple[int, float, events.Event]]]:
    """The run's row, and (number, seconds, event) as a live client received them."""
    data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return data["summary"], [(n, s, events.from_json(e)) for n, s, e in data["events"]]


def live_items(name: str = BEAM) -> list[Numbered]:
    return [(n, e) for n, _, e in recorded(name)[1]]


def stored_items() -> list[Numbered]:
    """What the store keeps of the beam run: everything but Progress."""
    return [(n, e) for n, e in live_items() if not isinstance(e, events.Progress)]


def end_with(**fields: Any) -> list[Numbered]:
    """The stored events, with these fields of the run's result."""
    *items, (number, end) = stored_items()
    told = events.to_json(end)
    return [*items, (number, events.from_json({**told, "result": {**told["result"], **fields}}))]


def whole_answer_items(ended: int) -> list[Numbered]:
    """A self-consistency run made of the beam run's 16 paths: `ended` are whole, the rest grow."""
    live = [e for _, e in live_items()]
    config = {**live[0].config, "strategy": "self_consistency", "selection": "majority"}  # type: ignore[union-attr]
    result = live[-1].result  # type: ignore[union-attr]
    paths = [(NodeId(i + 1), c["text"]) for i, c in enumerate(result["completions"])]
    level = build_level(0, 1, *(node for node, _ in paths))
    items: list[events.Event] = [events.RunStarted(config=config, queue_s=0.0), level]
    for node, text in paths[:ended]:
        step = build_step(node, text, tokens=len(text.split()) * 3, finish="stop")
        items.append(replace(step, answer=text.rpartition("{")[2].partition("}")[0]))
    growing = [(node, text[: 20 * (node % 5 + 2)]) for node, text in paths[ended:]]
    tokens = tuple((node, len(text) // 2) for node, text in growing)
    numbered = list(enumerate(items, start=1))
    return [*numbered, (len(items), events.Progress(tokens=tokens, tails=tuple(growing)))]


def engine(used: int, quota: int) -> dict[str, Any]:
    view = {"blocks_used": used, "quota_blocks": quota, "block_bytes": 131072}
    return {"state": "ready", "restarts": 0, "view": view}


def summary(run: str, status: str, recording: str = BEAM, **more: Any) -> dict[str, Any]:
    base = recorded(recording)[0]
    ended = {} if status == "finished" else {"answer": None, "tree_tokens": None, "total_s": None}
    return {**base, "id": run, "status": status, "created_at": 97.0, **ended, **more}


class FakeDaemon:
    """Answers from its lists; `items` are the events of each run. down: nothing answers."""

    base_url = "http://127.0.0.1:8642"

    def __init__(self, *runs: dict[str, Any], items: Sequence[Numbered] = ()) -> None:
        self.listing = list(runs)
        self.logs: dict[str, list[Numbered]] = {r["id"]: list(items) for r in runs}
        self.strategies = tuple(STRATEGIES)
        self.told: dict[str, Any] = {}
        """Further fields of its status."""
        self.down = False
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.asked_after: list[int] = []
        self.pages: list[str] = []
        self.more_kept = 223
        self.may_page = asyncio.Event()
        self.may_page.set()
        self._changed = asyncio.Event()

    def send(self, run: str, items: list[Numbered]) -> None:
        """Append events to a run's log, and wake its followers."""
        self.logs.setdefault(run, []).extend(items)
        self._changed.set()
        self._changed = asyncio.Event()

    def begin(self, row: dict[str, Any], items: Sequence[Numbered] = ()) -> None:
        self.listing.insert(0, row)
        self.logs[row["id"]] = list(items)

    def go(self, *, down: bool) -> None:
        self.down = down
        self.send("", [])

    def _check(self) -> None:
        if self.down:
            raise DaemonError("no daemon answers at 127.0.0.1:8642", hint="flashedge up")

    async def status(self) -> dict[str, Any]:
        self._check()
        counts = {s: sum(r["status"] == s for r in self.listing) for s in ("running", "queued")}
        return {
            "version": "0.1.0",
            "state": "ready",
            "pair": "bundled",
            "engines": {"generator": engine(900, 2047), "verifier": engine(120, 1023)},
            "runs": counts,
            "kept_runs": len(self.listing) + self.more_kept,
            **self.told,
        }

    async def models(self) -> dict[str, Any]:
        self._check()
        return {"data": [{"id": "bundled"}, *({"id": f"bundled:{s}"} for s in self.strategies)]}

    async def runs(self, *, limit: int = 20, before: str | None = None) -> dict[str, Any]:
        self._check()
        ids = [r["id"] for r in self.listing]
        start = 0 if before is None else ids.index(before) + 1
        if before is not None:
            self.pages.append(before)
            await self.may_page.wait()
        return {"data": [dict(r) for r in self.listing[start : start + limit]]}

    async def submit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._check()
        if body["strategy"] not in self.strategies:
            known = ", ".join(self.strategies)
            raise NotFound(f"no strategy {body['strategy']!r}; known: {known}", param="strategy")
        self.submitted.append(dict(body))
        run = f"run-new{len(self.submitted)}"
        self.begin(summary(run, "running", problem=body["problem"], answer=None))
        return {"id": run, "status": "running", "position": None}

    async def cancel(self, run: str) -> dict[str, Any]:
        self._check()
        self.cancelled.append(run)
        next(row for row in self.listing if row["id"] == run)["status"] = "cancelled"
        return {"id": run, "status": "cancelled"}

    async def events(self, run: str, after: int = 0) -> AsyncGenerator[tuple[Numbered, ...], None]:
        self._check()
        if run not in self.logs:
            raise NotFound(f"no run {run}")
        self.asked_after.append(after)
        at = sum(number <= after for number, _ in self.logs[run])
        while True:
            news = tuple(self.logs[run][at:])
            at += len(news)
            if news:
                yield news
                if isinstance(news[-1][1], events.TERMINAL):
                    return
            status = next(r["status"] for r in self.listing if r["id"] == run)
            if status == "interrupted":
                raise RunInterrupted("the log has no end")
            await self._changed.wait()
            if self.down:
                raise DaemonError("lost the daemon")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def dashboard(
    daemon: FakeDaemon, clock: Clock | None = None, theme_file: Path | None = None
) -> DashboardApp:
    """With a fixed device and a clock that stands still at second 100."""
    clock = clock or Clock()
    return DashboardApp(
        daemon,
        devices=lambda cards: (DEVICE,),
        clock=clock,
        wall=lambda: clock.now,
        poll_s=0.05,
        theme_file=theme_file,
    )


@asynccontextmanager
async def opened(
    daemon: FakeDaemon,
    size: tuple[int, int] = (120, 40),
    clock: Clock | None = None,
    theme_file: Path | None = None,
) -> AsyncIterator[tuple[Pilot[None], DashboardApp]]:
    app = dashboard(daemon, clock, theme_file)
    async with app.run_test(size=size) as pilot:
        yield pilot, app
