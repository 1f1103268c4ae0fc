"""A service whose runs follow a script, in place of the real runtime.

It has what the HTTP layer uses of `runtime.service.Service`, so that tests of the
HTTP layer take milliseconds and control the order of events.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from flashedge.engine.base import EngineView, Health
from flashedge.errors import Conflict, FlashEdgeError, NotFound, QueueFull
from flashedge.events import TERMINAL, Event, RunCancelled, RunFailed, RunFinished, RunStarted
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.records.event_log import EventLog
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.validation import Request
from flashedge.runtime.run import Cancelled
from flashedge.runtime.run_state import RunState
from flashedge.runtime.served_pair import PairState, ServiceHealth
from flashedge.scheduling.programs.estimates import RunEstimate, Scheduling
from flashedge.search import catalog
from flashedge.types import Sampling, TokenIds
from tests.support.fake_protocols import FakeProtocols
from tests.support.made_run import build_result, build_row, build_start

STRATEGIES = tuple(catalog.STRATEGIES)
IDLE = dict.fromkeys(("running", "waiting", "preemptions", "blocks_used"), 0)
VIEW = EngineView(**IDLE, blocks_total=64, quota_blocks=64, block_tokens=32, block_bytes=4096)


def build_run_result(run_id: str, request: Request) -> dict[str, Any]:
    asked = {name: getattr(request, name) for name in ("pair", "strategy", "n", "seed")}
    votes = [{"answer": "2", "weight": 0.9, "count": request.n}]
    completions = [{"node": 2, "text": "…", "finish_reason": "stop", "score": 0.9}]
    return build_result(id=run_id, **asked, votes=votes, completions=completions)


def script(request: Request, run_id: str) -> list[Event]:
    steps = (("1 + 1 = 3.\n\n", 0.125), ("1 + 1 = 2.\n\n", 0.875))
    finished = RunFinished(result=build_run_result(run_id, request))
    return [*build_start(Plan(request=request).to_json(), steps), finished]


class FakeHandle:
    """A run whose events a test emits one by one, or all at once by `play`."""

    def __init__(self, run_id: str, request: Request, metrics: Metrics) -> None:
        self.id = run_id
        self.request = request
        self.plan = Plan(request=request)
        self.status = "queued"
        self.position: int | None = None
        self.starts_in_s: float | None = None
        self.cancelled: list[str] = []
        self.error: FlashEdgeError | None = None
        self._log = EventLog()
        self._over = asyncio.Event()
        self._metrics = metrics
        self._ledger = RunState(run_id, request)

    @property
    def estimate(self) -> RunEstimate:
        return RunEstimate(position=self.position, starts_in_s=self.starts_in_s)

    def emit(self, *events: Event) -> None:
        for event in events:
            self._log.append(event)
            self._ledger.observe(event, time.monotonic())
            self._metrics.observe(self._ledger, event)
            match event:
                case RunStarted():
                    self.status, self.position = "running", None
                case RunFinished():
                    self.status = "finished"
                case RunFailed(error=message, hint=hint):
                    self.status, self.error = "failed", FlashEdgeError(message, hint=hint)
                case RunCancelled(reason=reason):
                    self.status, self.position = "cancelled", None
                    self.error = Cancelled(f"cancelled: {reason}")
            if isinstance(event, TERMINAL):
                self._over.set()

    def play(self) -> None:
        self.emit(*script(self.request, self.id))

    def events(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        return self._log.follow(after)

    @property
    def followers(self) -> int:
        return len(self._log._followers)

    async def result(self) -> dict[str, Any]:
        await self._over.wait()
        if self.error is not None:
            raise self.error
        return self.object()

    def cancel(self, reason: str) -> None:
        if not self._over.is_set():
            self.cancelled.append(reason)
            self.emit(RunCancelled(reason=reason))

    def object(self) -> dict[str, Any]:
        if self.status == "finished":
            return build_run_result(self.id, self.request)
        error = self.error and {"message": str(self.error), "code": self.error.code}
        now = {"id": self.id, "status": self.status, **asdict(self.estimate)}
        return {**now, "spec": self.plan.to_json(), "error": error}


PROCESSES = {n: Health(state="ready", pid=at) for at, n in enumerate(("generator", "verifier"), 1)}
READY = ServiceHealth(state="ready", detail=None, self_test=None, **PROCESSES)


@dataclass
class FakeService:
    """A service that follows a script.

    With `autoplay` a submitted run plays its events; else the test emits them. A run raises
    `failure` when it is set. `protocols` answers requests that name no search.
    """

    default_pair: str = "bundled"
    autoplay: bool = True
    failure: Exception | None = None
    queue_limit: int = 4
    state: ServiceHealth = READY
    metrics: Metrics = field(default_factory=Metrics)
    handles: dict[str, FakeHandle] = field(default_factory=dict)
    protocols: FakeProtocols = field(default_factory=FakeProtocols)
    continued: list[str] = field(default_factory=list)
    views_delay_s: float = 0.0
    life: list[str] = field(default_factory=list)
    kept_alive: list[float | None] = field(default_factory=list)
    scheduling: Scheduling = field(
        default_factory=lambda: Scheduling(policy="shortest", programs=())
    )

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self.idle = SimpleNamespace(keep_alive=self.kept_alive.append)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.life.append("started")

    async def stop(self) -> None:
        self.life.append("stopped")

    def health(self) -> ServiceHealth:
        return self.state

    def pairs(self) -> dict[str, PairState]:
        async def read_views() -> dict[str, EngineView]:
            await asyncio.sleep(self.views_delay_s)
            return {"generator": VIEW, "verifier": VIEW}

        state = PairState(health=self.state, read_views=read_views, **self.counts)
        return {self.default_pair: state}

    @property
    def loaded(self) -> tuple[str, ...]:
        return (self.default_pair,)

    @asynccontextmanager
    async def use_pair(self, name: str) -> AsyncIterator[FakeService]:
        yield self

    def load(self) -> None:
        self.life.append("loaded")

    @property
    def kept_runs(self) -> int:
        return len(self.handles)

    @property
    def counts(self) -> dict[str, int]:
        statuses = [h.status for h in self.handles.values()]
        return {s: statuses.count(s) for s in ("queued", "running")}

    @property
    def last(self) -> FakeHandle:
        return list(self.handles.values())[-1]

    def check_queue(self, pair: str) -> None:
        if self.counts["queued"] >= self.queue_limit:
            raise QueueFull("4 runs wait", retry_after_s=4.2)

    async def encode_prompt(self, request: Request) -> TokenIds:
        return (1,)

    def submit(
        self,
        request: Request,
        prompt_ids: TokenIds | None = None,
        *,
        run_id: str | None = None,
        continues: str | None = None,
        caller: object = None,
    ) -> FakeHandle:
        if run_id in self.handles:
            return self.handles[run_id]
        if continues is not None:
            self.continued.append(continues)
        if self.failure is not None:
            raise self.failure
        if request.pair != self.default_pair:
            raise NotFound(f"no pair {request.pair!r}", param="pair")
        if request.strategy not in STRATEGIES:
            raise NotFound(f"there is no strategy {request.strategy!r}", param="strategy")
        self.check_queue(request.pair)
        handle = FakeHandle(run_id or f"run-{next(self._ids)}", request, self.metrics)
        self.handles[handle.id] = handle
        if self.autoplay:
            self._tasks.append(asyncio.create_task(self._play(handle)))
        else:
            handle.position = self.counts["queued"] - 1
        return handle

    async def _play(self, handle: FakeHandle) -> None:
        for event in script(handle.request, handle.id):
            await asyncio.sleep(0)
            if handle.status == "cancelled":
                return
            handle.emit(event)

    def run(self, run_id: str) -> FakeHandle:
        if run_id not in self.handles:
            raise NotFound(f"there is no run {run_id!r}", hint="`flashedge runs ls` lists them")
        return self.handles[run_id]

    async def runs(
        self, *, limit: int = 50, before: Any = None, status: Any = None, text: str | None = None
    ) -> list[dict[str, Any]]:
        newest = list(reversed(self.handles.values()))
        start = 0 if before is None else newest.index(self.run(before)) + 1
        chosen = [h for h in newest[start:] if status in (None, h.status)]
        return [s for s in map(_summary, chosen[:limit]) if (text or "") in s["problem"]]

    def delete(self, run_id: str) -> None:
        if self.run(run_id).status in ("queued", "running"):
            raise Conflict(f"run {run_id} is not over", hint="cancel it first")
        del self.handles[run_id]


def _summary(handle: FakeHandle) -> dict[str, Any]:
    request = handle.request
    told = {"status": handle.status, "problem": request.problem.text[:200]}
    row = build_row(build_run_result(handle.id, request), **told)
    if handle.status != "finished":
        row |= dict.fromkeys(("finished_at", "answer", "tree_tokens", "total_s"))
    return row


def fake_pair(judges: str = "steps") -> Any:
    """The served pair's defaults, all that the HTTP layer reads of a Pair."""
    limits = {"max_step_tokens": 96, "max_path_tokens": 512, "min_step_tokens": 8}
    rules = {"step_rule": "blank_line", "step_entropy": 0.3, "judge": "steps"}
    return SimpleNamespace(
        name="bundled",
        sampling=Sampling(temperature=0.7, top_p=0.95, top_k=0),
        generator=SimpleNamespace(max_model_len=1024, reasoning_parser=None),
        verifier=SimpleNamespace(judges=judges, scores_pairs=judges == "answers"),
        has_verifier=judges != "nothing",
        options={"probed_cot": {"suffix": "\n\nFinal answer: \\boxed{"}},
        **limits,
        **rules,
    )
