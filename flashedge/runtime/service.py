"""Everything that the API can do: submit, follow and cancel runs, inspect the engines, and reach
them by vLLM's own protocols."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from flashedge.answers.grouping import TextGroups, WordGroups
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.config import Config
from flashedge.engine.base import EngineView
from flashedge.engine.http_requests import PlainRequests
from flashedge.errors import Conflict, DaemonStopping, FlashEdgeError, NotFound
from flashedge.events import Event, StepCompleted
from flashedge.runtime.drive.driver import Driver
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN, EarlierRun
from flashedge.runtime.lengths.predictions import Predictions
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.pair_loader import IdleClock, OpenPair, PairLoader
from flashedge.runtime.plain_requests import watch_request
from flashedge.runtime.programs.scheduler import PairScheduler
from flashedge.runtime.records.result import build_result
from flashedge.runtime.records.retention import Retention
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.plan import (
    Plan,
    check_continues,
    check_same_bits,
    check_shapes,
    make_plan,
)
from flashedge.runtime.request.strategies import build_search
from flashedge.runtime.request.validation import Request
from flashedge.runtime.rollouts.boosting import Boosting, DaemonTime
from flashedge.runtime.run import (
    STOPPED,
    ArchivedRun,
    Run,
    RunHandle,
    RunStatus,
    check_run_id,
    create_run_id,
    summarize,
)
from flashedge.runtime.run_state import RunState
from flashedge.runtime.served_pair import PairState, ServedPair, ServiceHealth
from flashedge.runtime.solution_scoring import ScoreAsk, SolutionScores, score_solutions
from flashedge.scheduling.programs.estimates import Scheduling
from flashedge.scheduling.programs.program import ANONYMOUS, Caller
from flashedge.search.voting import Search
from flashedge.types import Timing, TokenIds, Usage

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
"""Seconds for which a stopping daemon waits for cancelled runs. The next start marks one that hung
as interrupted. Chosen by hand: runs end in milliseconds, and users wait for `flashedge down`."""


class Service:
    """Serves pairs: their engines, their runs, and requests outside any run."""

    def __init__(
        self,
        config: Config,
        open_pair: OpenPair,
        first: ServedPair | None,
        store: RunStore,
        grader: MathGrader,
        texts: TextGroups | None = None,
    ) -> None:
        """first: the pair that is loaded at the start. texts: groups open-ended answers. None
        groups them by their words."""
        self.config = config
        self.default_pair = config.pair
        self.metrics = Metrics()
        self._store = store
        self._grader = grader
        self._texts = texts or WordGroups()
        self._retention = Retention(store, config)
        self._runs: dict[str, Run] = {}
        self._predictions = Predictions(config, store)
        self._schedulers: dict[str, PairScheduler] = {}
        """By pair. They stay when a pair is unloaded, and keep what they learned of its speed."""
        self._plain = PlainRequests(partial(watch_request, self.metrics, self.scheduler))
        self._loader = PairLoader(open_pair, self._plain, config.loaded_pairs, first)
        self._boosting = Boosting(daemon=DaemonTime(self._count_tokens))
        self._tasks: set[asyncio.Task[None]] = set()
        self.idle = IdleClock(config.keep_alive_s, self._is_busy)
        self._is_stopping = False
        self._loading: asyncio.Task[None] | None = None  # held against garbage collection

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """End the runs that a crash left open, and start the engines. Raises StoreError, and
        EngineError, after which `health` reports failed."""
        for run_id in self._store.interrupt_unfinished():
            log.warning("run %s was interrupted when the daemon ended", run_id)
        self._retention.look()
        await self._loader.start()

    async def stop(self) -> None:
        """Cancel runs, abort other requests, stop the engines, and close the store."""
        self._is_stopping = True
        for run in list(self._runs.values()):
            run.cancel(STOPPED)
        await self._plain.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
        for scheduler in self._schedulers.values():
            await scheduler.stop()
        await self._boosting.stop()
        await self._predictions.stop()
        self._save_runs()
        await self._retention.stop()
        await self._loader.stop()
        await self._grader.close()
        await self._texts.close()
        self._store.close()

    @property
    def loaded(self) -> tuple[str, ...]:
        return self._loader.names

    def health(self) -> ServiceHealth:
        return self._loader.health()

    @property
    def should_unload(self) -> bool:
        """Whether loaded pairs have passed their idle timeout."""
        return self._loader.shown is not None and self.idle.is_due

    def load(self) -> None:
        """Begin to load the default pair. `health` reports how far that is."""
        self._loader.failure = None
        self._loading = asyncio.create_task(self._load(), name="load")

    async def _load(self) -> None:
        with suppress(FlashEdgeError):  # `health` says what failed
            async with self.use_pair(self.default_pair):
                pass

    @asynccontextmanager
    async def use_pair(self, name: str) -> AsyncIterator[ServedPair]:
        """Load a pair if needed, and keep it for the block. See `PairLoader.use`."""
        self._check_open()
        try:
            async with self._loader.use(name) as pair:
                yield pair
        finally:
            self.idle.note_end()

    def scheduler(self, pair: str) -> PairScheduler:
        """Return the pair's scheduler, which its first use builds."""
        if pair not in self._schedulers:
            self._schedulers[pair] = PairScheduler(
                pair,
                self.config,
                partial(self._loader.rank_programs, pair),
                self._predictions,
                note_wait=self.metrics.observe_wait,
            )
        return self._schedulers[pair]

    def pairs(self) -> dict[str, PairState]:
        """Describe the loaded pairs by name, the most recently used one last, then the one that is
        being loaded. Without any, describe the default pair."""

        async def read_nothing() -> dict[str, EngineView]:
            return {}

        found = {pair.name: (pair.health(), pair.views) for pair in self._loader.list_pairs()}
        if not found:
            found[self.default_pair] = self.health(), read_nothing
        states = {}
        for name, (health, read_views) in found.items():
            queued, running = self.scheduler(name).queue.sizes
            states[name] = PairState(
                health=health, queued=queued, running=running, read_views=read_views
            )
        return states

    # ------------------------------------------------------------ runs

    def check_queue(self, pair: str) -> None:
        """Raises QueueFull when no further run of this pair may wait, and DaemonStopping."""
        self._check_open()
        self.scheduler(pair).queue.check_room()

    async def encode_prompt(self, request: Request) -> TokenIds:
        """Encode in a thread the prompt that `submit` takes. Raises ContextOverflow, EngineDead."""
        return await asyncio.to_thread(self._loader.get(request.pair).encode_prompt, request)

    def submit(
        self,
        request: Request,
        prompt_ids: TokenIds | None = None,
        *,
        run_id: str | None = None,
        continues: str | None = None,
        caller: Caller = ANONYMOUS,
    ) -> RunHandle:
        """Queue a run. Its pair must be in use (`use_pair`); the run keeps it loaded.

        prompt_ids: what `encode_prompt` returned. By default the request's own, else encoded here.
        run_id: an id that the client chose; submitting it again returns the run that has it.
        continues: the id of a finished run, whose tree the new run resumes where it ended.
        caller: who asks, and how urgently.
        Raises ContextOverflow, QueueFull, DaemonStopping, EngineDead, ConfigError, RequestError,
        StoreError, NotFound for `continues`, and Conflict if the id is another request's, or the
        earlier run can't be continued.
        """
        self._check_open()
        pair = self._loader.get(request.pair)
        request, prompt_ids = _fit_request(request, prompt_ids, pair)
        plan = make_plan(request, self.config, pair.fingerprint)
        if plan.early_exit_note is not None:
            log.warning("%s", plan.early_exit_note)
        search = build_search(plan.request, pair.judges)
        if run_id is not None and (known := self._find_named(run_id, request)) is not None:
            return known
        earlier = NO_EARLIER_RUN if continues is None else self._load_earlier(continues, plan)
        run_id, scheduler = run_id or create_run_id(), self.scheduler(pair.name)
        scheduler.set_capacity(pair.capacity)
        scheduler.queue.check_room()  # before the program is known to anybody
        state = scheduler.add_run(run_id, plan.request, prompt_ids, caller)
        scheduler.queue.reserve(run_id)
        find_estimate = partial(scheduler.estimate_run, run_id)
        observe = partial(self._observe, state, scheduler)
        run = self._runs[run_id] = Run(run_id, request, plan, self._store, find_estimate, observe)
        self._loader.hold(pair.name)
        work = partial(self._search, run, state, pair, search, prompt_ids, earlier)
        run.task = asyncio.create_task(self._execute(run, pair, work), name=run_id)
        self._tasks.add(run.task)
        run.task.add_done_callback(partial(self._clean_up, run))
        return run

    async def score(self, ask: ScoreAsk, caller: Caller = ANONYMOUS) -> tuple[SolutionScores, ...]:
        """Score solutions outside a search, on a pair that is in use. See `score_solutions`."""
        return await score_solutions(self._loader.get(ask.pair), ask, caller, self.metrics)

    def run(self, run_id: str) -> RunHandle:
        """Find a live or stored run. Raises NotFound."""
        live = self._runs.get(run_id)
        if live is not None:
            return live
        stored = self._store.get(run_id)
        if stored is None:
            raise NotFound(f"there is no run {run_id!r}", hint="`flashedge runs ls` lists them")
        return ArchivedRun(stored, self._store)

    async def runs(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: str | None = None,
        text: str | None = None,
    ) -> list[dict[str, Any]]:
        """List the runs that `RunStore.list_runs` chooses, as `summarize` describes them. A search
        for `text` may read every run, so it runs in a thread."""
        read = partial(self._store.list_runs, limit=limit, before=before, status=status, text=text)
        stored = read() if text is None else await asyncio.to_thread(read)
        return [summarize(run, self._runs.get(run.id)) for run in stored]

    def delete(self, run_id: str) -> None:
        """Remove a run that is over. Raises NotFound, StoreError, or Conflict before its end."""
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
        sizes = [scheduler.queue.sizes for scheduler in self._schedulers.values()]
        return {
            "queued": sum(waiting for waiting, _ in sizes),
            "running": sum(running for _, running in sizes),
        }

    @property
    def scheduling(self) -> Scheduling:
        boosting = self._boosting
        schedulers = self._schedulers.values()
        return Scheduling(
            policy=self.config.scheduling_policy,
            programs=tuple(program for each in schedulers for program in each.estimate_programs()),
            boosts=boosting.list_states(),
            boost_running_s=boosting.running_s,
            boost_open_s=boosting.open_s,
        )

    def _find_named(self, run_id: str, request: Request) -> RunHandle | None:
        check_run_id(run_id)
        try:
            known = self.run(run_id)
        except NotFound:
            return None
        if known.request != request:
            raise Conflict(f"run {run_id} was submitted with another request", param="id")
        return known

    def _load_earlier(self, run_id: str, plan: Plan) -> EarlierRun:
        earlier, live = self.run(run_id), self._runs.get(run_id)
        if earlier.status != RunStatus.FINISHED or (live is not None and not live.stored):
            raise Conflict(f"run {run_id} is not finished and stored", param="continues")
        check_continues(earlier.plan, plan, run_id)
        if plan.request.deterministic:
            found = self._loader.get(plan.request.pair).health().self_test
            check_shapes(found)
            check_same_bits(earlier.object(), found)
        return EarlierRun.from_events(event for _, event in self._store.events(run_id))

    async def _execute(
        self, run: Run, pair: ServedPair, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        """Wait for the run's turn and run it. Whatever ends it becomes its terminal event."""
        try:
            if run.request.deterministic:
                await pair.wait_tested()
                check_shapes(pair.health().self_test)
            async with self.scheduler(pair.name).queue.wait_turn(run.id):
                run.mark_finished(await work())
        except asyncio.CancelledError:
            run.mark_cancelled()
        except FlashEdgeError as error:
            run.mark_failed(error)
        except Exception as error:
            log.exception("run %s failed", run.id)
            run.mark_failed(FlashEdgeError(f"a bug in FlashEdge: {type(error).__name__}: {error}"))

    async def _search(
        self,
        run: Run,
        state: RunState,
        pair: ServedPair,
        search: Search[Any],
        prompt_ids: TokenIds,
        earlier: EarlierRun,
    ) -> dict[str, Any]:
        """Run a search whose turn has come. Returns its result. Raises what ends the run."""
        scheduler, request = self.scheduler(pair.name), run.plan.request
        scheduler.note_start(run.id)
        queue_s, began, failed = run.mark_started(), time.monotonic(), self._num_failed_comparisons
        engines = pair.build_engines(self._grader, self._texts, baseline=request.baseline)
        engines = replace(
            engines, program=scheduler.find_key(run.id), client=scheduler.find_client(run.id)
        )
        with engines.join_kv(run.emit, len(prompt_ids)) as memory:
            driver = Driver(search, request, prompt_ids, engines, run.emit, earlier, memory.follow)
            with self._boosting.join(state, pair, driver.allow):
                outcome = await driver.run()
        usage = Usage(
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(outcome.tree.path_token_ids(outcome.finish.choice)),
            tree_tokens=outcome.tree.committed_tokens,
            speculation=driver.speculation,
            verifier_tokens=driver.scoring.tokens,
            verifier_cached_tokens=driver.scoring.cached_tokens,
            probe_tokens=driver.probe_tokens,
            cancelled_tokens=driver.cancelled_tokens,
        )
        timing = Timing(
            queue_s=queue_s,
            generate_s=driver.generating.seconds,
            verify_s=driver.scoring.waiting.seconds,
            total_s=time.monotonic() - began,
        )
        result = build_result(
            run.id,
            run.plan,
            outcome,
            usage,
            timing,
            self_test=pair.health().self_test,
            thinking=driver.thinking,
            scores_probability=pair.scores_probability,
            num_failed_comparisons=self._num_failed_comparisons - failed,
        )
        return {**result, "kv": memory.record}

    @property
    def _num_failed_comparisons(self) -> int:
        """Comparisons of answers that failed or took too long so far, in all runs."""
        return self._grader.num_failures + self._texts.num_failures

    def _clean_up(self, run: Run, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        scheduler = self.scheduler(run.request.pair)
        scheduler.queue.leave(run.id)  # also of a run that ended before it waited for its turn
        scheduler.end_run(run.id)
        self._loader.release(run.request.pair)
        self.idle.note_end()
        self._retention.look()
        if run.status is RunStatus.QUEUED:  # cancelled before its task took a step
            run.mark_cancelled()
        self._save_runs()

    def _save_runs(self) -> None:
        """Store runs that are over, and forget those that are stored."""
        for run in list(self._runs.values()):
            run.save()
            if run.stored and run.task not in self._tasks:
                self._runs.pop(run.id, None)

    def _observe(self, state: RunState, scheduler: PairScheduler, event: Event) -> None:
        if isinstance(event, StepCompleted) and event.answer is not None:
            self._grader.expect(event.answer)
        scheduler.note_event(state.id, event)
        self.metrics.observe(state, event)
        self._boosting.note_event(state)

    def _count_tokens(self) -> int:
        return sum(scheduler.drawn_tokens for scheduler in self._schedulers.values())

    def _check_open(self) -> None:
        if self._is_stopping:
            raise DaemonStopping.for_request()

    def _is_busy(self) -> bool:
        return self._loader.is_used or bool(self._tasks) or self.health().state == "starting"


def _fit_request(
    request: Request, prompt_ids: TokenIds | None, pair: ServedPair
) -> tuple[Request, TokenIds]:
    """Encode the prompt if needed, and lower `max_path_tokens` to the context left after it. Raises
    ContextOverflow, and RequestError for what the pair can't do."""
    prompt_ids = prompt_ids or request.prompt_ids or pair.encode_prompt(request)
    room = pair.count_room(prompt_ids)
    request = replace(request, max_path_tokens=min(request.max_path_tokens, room))
    pair.check_step_rule(request.step_rule)
    if request.deterministic and (found := pair.health().self_test) is not None:
        check_shapes(found)  # else the run waits for it
    return request, prompt_ids
