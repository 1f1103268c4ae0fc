"""Everything that the API can do: submit, follow and cancel runs, inspect the engines, reach them
by vLLM's own protocols."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from flashedge.answers.equality import TextGroups, WordGroups
from flashedge.answers.workers.embedding_groups import build_embedding_groups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config
from flashedge.engine.base import EngineView
from flashedge.engine.memory_plan import resolve_memory
from flashedge.engine.plain_requests import AsgiApp
from flashedge.errors import (
    Conflict,
    DaemonStopping,
    FlashEdgeError,
    NotFound,
)
from flashedge.events import Event
from flashedge.models.memory.kv_plan import find_explicit
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.runtime.drive.driver import Driver, Outcome
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.kv.start_split import choose_start_split
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.plain_requests import PlainRequests
from flashedge.runtime.queue import RunQueue
from flashedge.runtime.records.archive import ArchivedRun, RunSummary, build_summary
from flashedge.runtime.records.result import build_result
from flashedge.runtime.records.retention import Retention
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.calibrations import resolve_early_exit, restore_request
from flashedge.runtime.request.spec import RunSpec, check_continues
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.run import STOPPED, Run, RunStatus, check_run_id, create_run_id
from flashedge.runtime.served_pair import EnginePair, ServedPair, ServiceHealth
from flashedge.search.base import Search
from flashedge.types import Timing, TokenIds, Usage

log = logging.getLogger(__name__)

RunHandle = Run | ArchivedRun


class Service:
    """Serves one pair: its engines, its runs, and requests outside any run."""

    def __init__(
        self,
        config: Config,
        pair: Pair,
        engines: EnginePair,
        store: RunStore,
        grader: MathGrader,
        texts: TextGroups | None = None,
    ) -> None:
        """texts: groups open-ended answers. None groups them by their words."""
        self.config = config
        self.pair = pair.name
        self.metrics = Metrics()
        self._served = ServedPair(pair, engines, config)
        self._store = store
        self._grader = grader
        self._texts = texts or WordGroups()
        self._retention = Retention(store, config)
        self._queue = RunQueue(config.max_running, config.queue_limit)
        self._runs: dict[str, Run] = {}
        self._plain = PlainRequests(self.metrics, self._served.count_plain_request, self._note_end)
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy_at = time.monotonic()
        self._is_stopping = False

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the engines and test them. Raises EngineError; `health` then reports failed."""
        for run_id in self._store.interrupt_unfinished():
            log.warning("run %s was interrupted when the daemon ended", run_id)
        self._retention.look()
        await self._served.start(self._plain)

    async def stop(self) -> None:
        """Cancel what is open, stop the engines and close the store."""
        self._is_stopping = True
        for run in list(self._runs.values()):
            run.cancel(STOPPED)
        await self._plain.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        await self._retention.stop()
        await self._served.stop()
        await self._grader.close()
        await self._texts.close()
        self._store.close()

    def health(self) -> ServiceHealth:
        return self._served.health()

    @property
    def idle_s(self) -> float:
        """Seconds since the last run or request ended, or since the daemon was ready."""
        if self._tasks or self._plain.open_choices or self.health().state == "starting":
            self._busy_at = time.monotonic()
        return time.monotonic() - self._busy_at

    async def views(self) -> dict[str, EngineView]:
        """The load of both engines now. Raises EngineDead."""
        return await self._served.views()

    # ------------------------------------------------------------ runs

    def check_queue(self) -> None:
        """Raises QueueFull when no further run may wait."""
        self._check_open()
        self._queue.check_room()

    async def encode_prompt(self, spec: RunSpec) -> TokenIds:
        """The run's prompt for `submit`. A long problem is encoded beside the event loop.

        Raises NotFound, ContextOverflow, EngineDead.
        """
        self._served.check_serves(spec.pair)
        return await asyncio.to_thread(
            self._served.encode_prompt, spec.problem.messages, spec.chat_template_kwargs
        )

    def submit(
        self,
        spec: RunSpec,
        prompt_ids: TokenIds | None = None,
        *,
        run_id: str | None = None,
        continues: str | None = None,
    ) -> RunHandle:
        """Queue a run.

        prompt_ids: what `encode_prompt` returned. None: the spec's own, else encoded here.
        run_id: an id that the client chose; submitting it again returns the run that has it.
        continues: the id of a finished run, whose tree the new run resumes where it ended.
        Raises NotFound, ContextOverflow, QueueFull, EngineDead, RequestError for the id, Conflict
        when the run with this id, or the continued one, was submitted with another request.
        """
        self._check_open()
        self._served.check_serves(spec.pair)
        prompt_ids = (
            prompt_ids
            or spec.prompt_ids
            or self._served.encode_prompt(spec.problem.messages, spec.chat_template_kwargs)
        )
        room = self._served.max_model_len - len(prompt_ids)
        spec = dataclasses.replace(spec, max_path_tokens=min(spec.max_path_tokens, room))
        self._served.check_step_rule(spec.step_rule)
        spec = resolve_early_exit(spec, self.config, self._served.fingerprint)
        if spec.early_exit_note is not None:
            log.warning("%s", spec.early_exit_note)
        search = build_search(spec, self._served.judges)
        if run_id is not None and (known := self._find_named(run_id, spec)) is not None:
            return known
        earlier = NO_EARLIER_RUN if continues is None else self._load_earlier(continues, spec)
        run_id = run_id or create_run_id()
        self._queue.reserve(run_id)
        run = Run(
            run_id,
            spec,
            self._store,
            lambda r: self._queue.position(r.id),
            self._build_observer(run_id),
        )
        self._runs[run_id] = run
        run.task = asyncio.create_task(self._execute(run, search, prompt_ids, earlier), name=run_id)
        self._tasks.add(run.task)
        run.task.add_done_callback(lambda task: self._clean_up(run, task))
        return run

    def run(self, run_id: str) -> RunHandle:
        """A live or stored run. Raises NotFound."""
        live = self._runs.get(run_id)
        if live is not None:
            return live
        stored = self._store.get(run_id)
        if stored is None:
            raise NotFound(f"there is no run {run_id!r}", hint="`flashedge runs ls` lists them")
        return ArchivedRun(stored, self._store)

    def runs(
        self, *, limit: int = 50, before: str | None = None, status: str | None = None
    ) -> list[RunSummary]:
        """Runs, newest first. before: the last id of the previous page."""
        stored = self._store.list(limit=limit, before=before, status=status)
        return [build_summary(s, self._runs.get(s.id)) for s in stored]

    def delete(self, run_id: str) -> None:
        """Remove a finished run. Raises NotFound, StoreError, or Conflict while it runs."""
        if self.run(run_id).status in (RunStatus.QUEUED, RunStatus.RUNNING):
            raise Conflict(f"run {run_id} is not over", hint="cancel it first")
        live = self._runs.get(run_id)
        try:
            self._store.delete(run_id)
        except NotFound:
            if live is None or live.stored:
                raise
        self._runs.pop(run_id, None)

    @property
    def kept_runs(self) -> int:
        """Runs in the store."""
        return self._store.count()

    @property
    def counts(self) -> dict[str, int]:
        return {"queued": self._queue.waiting, "running": self._queue.running}

    def _find_named(self, run_id: str, spec: RunSpec) -> RunHandle | None:
        check_run_id(run_id)
        try:
            known = self.run(run_id)
        except NotFound:
            return None
        if restore_request(known.spec).to_json() != restore_request(spec).to_json():
            raise Conflict(f"run {run_id} was submitted with another request", param="id")
        return known

    def _load_earlier(self, run_id: str, spec: RunSpec) -> EarlierRun:
        earlier, live = self.run(run_id), self._runs.get(run_id)
        if earlier.status != RunStatus.FINISHED or (live is not None and not live.stored):
            raise Conflict(f"run {run_id} is not finished and stored", param="continues")
        check_continues(earlier.spec, spec, run_id)
        return EarlierRun.from_events(event for _, event in self._store.events(run_id))

    async def _execute(
        self, run: Run, search: Search[Any], prompt_ids: TokenIds, earlier: EarlierRun
    ) -> None:
        try:
            async with self._queue.wait_turn(run.id):
                queue_s, began = run.mark_started(), time.monotonic()
                engines = self._served.build_engines(
                    self._grader, self._texts, baseline=run.spec.baseline
                )
                with engines.join_kv(run.emit) as memory:
                    search = memory.watch(search, len(prompt_ids))
                    driver = Driver(search, run.spec, prompt_ids, engines, run.emit, earlier)
                    outcome = await driver.run()
                timing = Timing(
                    queue_s=queue_s,
                    generate_s=driver.generating.seconds,
                    verify_s=driver.scoring.waiting.seconds,
                    total_s=time.monotonic() - began,
                )
                usage = _build_usage(driver, outcome, len(prompt_ids))
                result = build_result(
                    run.id,
                    run.spec,
                    outcome,
                    usage,
                    timing,
                    self_test=self.health().self_test,
                    thinking=driver.thinking,
                    scores_probability=self._served.scores_probability,
                )
                run.mark_finished({**result, "kv": memory.record})
        except asyncio.CancelledError:
            run.mark_cancelled()
        except FlashEdgeError as error:
            run.mark_failed(error)
        except Exception as error:
            log.exception("run %s", run.id)
            run.mark_failed(FlashEdgeError(f"a bug in FlashEdge: {type(error).__name__}: {error}"))

    def _clean_up(self, run: Run, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._busy_at = time.monotonic()
        self._retention.look()
        if run.status is RunStatus.QUEUED:  # cancelled before its task took a step
            self._queue.leave(run.id)
            run.mark_cancelled()
        if run.stored:
            self._runs.pop(run.id, None)

    def _build_observer(self, run_id: str) -> Callable[[Event], None]:
        return lambda event: self.metrics.observe(run_id, event)

    # ------------------------------------------------------------ outside any run

    @property
    def protocols(self) -> AsgiApp:
        """The HTTP protocols over the generator.

        Raises EngineDead, DaemonStopping, RequestError.
        """
        self._check_open()
        self._served.check_serves(self.pair)
        return self._served.protocols

    def _check_open(self) -> None:
        if self._is_stopping:
            raise DaemonStopping.for_request()

    def _note_end(self) -> None:
        self._busy_at = time.monotonic()


def _build_usage(driver: Driver, outcome: Outcome, prompt_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=len(outcome.tree.path_token_ids(outcome.finish.choice)),
        tree_tokens=outcome.tree.committed_tokens,
        speculation=driver.speculation,
        verifier_tokens=driver.scoring.tokens,
        verifier_cached_tokens=driver.scoring.cached_tokens,
        probe_tokens=driver.probe_tokens,
    )


def build(config: Config) -> Service:
    """Build the daemon's service: the configured pair on real vLLM engines.

    Raises ConfigError, CheckpointError, StoreError. Heavy imports happen in `Service.start`.
    """
    from flashedge.engine.vllm.pair import VllmPair

    pair = find_pair(config.pair, config)
    is_planned = None in find_explicit(pair, config)
    config = resolve_memory(pair, config)
    texts = build_embedding_groups(config)
    store = RunStore(config.state_dir / "runs.sqlite")
    engines = VllmPair(pair, config, choose_start_split(pair, config), is_planned=is_planned)
    return Service(config, pair, engines, store, MathGrader(), texts)
