"""Decides which runs of one pair start, and in which order its engines serve what they have.

A run, or a plain request, is a member of a program: its own, or the one whose key it carries. The
queue follows the order of programs (`scheduling.programs.active`). Except under fcfs, the engines
get this order whenever it has changed: by an event, or just by waiting.

Ref: ADR 18; arXiv 2412.20993 App. D.3.1; arXiv 2604.00499 §4.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

from flashedge.config import Config
from flashedge.engine.base import Generator, Verifier
from flashedge.engine.http_requests import PlainRequest
from flashedge.errors import QueueFull
from flashedge.events import CertaintyUpdated, Event, Progress, RunFinished, StepCompleted
from flashedge.runtime.lengths.predictions import Predictions, describe_search
from flashedge.runtime.request.strategies import count_paths_at_once
from flashedge.runtime.request.validation import Request
from flashedge.runtime.run_state import RunState
from flashedge.scheduling.costs import CostCurve
from flashedge.scheduling.lengths.distribution import LengthDistribution
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from flashedge.scheduling.programs.active import ActivePrograms, Rules
from flashedge.scheduling.programs.admission import (
    Capacity,
    KvShares,
    Need,
    can_start,
    find_useful_batch,
    predict_need,
)
from flashedge.scheduling.programs.estimates import (
    ProgramEstimate,
    RunEstimate,
    SearchSpeed,
    estimate_programs,
    predict_starts,
)
from flashedge.scheduling.programs.policies import POLICIES
from flashedge.scheduling.programs.program import ANONYMOUS, Caller, Kind, Member, Program
from flashedge.types import TokenIds

CONTEXT_TOKENS = 256
"""The context length at which decode steps are read from a cost curve: about a path's middle.
Chosen by hand: at ten times as much, reading KV makes large batches look slower than most steps
are."""
ARRIVAL_ORDER = "fcfs"
"""The policy under which the engines' own queues stay as they are."""
USUAL_BATCH = 256
"""Sequences in one step that engines of unknown speed are assumed to compute well. Chosen by hand:
with a tenth, two default searches fill the engines; with ten times as many nothing is full."""
LEAST_INTERVAL_S = 0.02
"""Least seconds between two orders that are sent to the engines. Chosen by hand: each is a message
to both, and a new request waits that long for its place, which shows at ten times as much."""
LOOK_S = 1.0
"""Seconds between two looks at the order while programs only wait. Escalation is set in seconds."""
KEPT_S = 0.1
"""Seconds for which estimates are kept. The stream of each waiting run asks for one as often."""


class PairScheduler:
    """The programs of one pair, and the queue of its runs."""

    def __init__(
        self,
        pair: str,
        config: Config,
        send_order: Callable[[Sequence[str]], Awaitable[None]],
        predictions: Predictions | None = None,
        clock: Callable[[], float] = time.monotonic,
        note_wait: Callable[[Kind, float], None] = lambda kind, waited_s: None,
    ) -> None:
        """send_order: sends the keys of programs, in their order, to both engines of the pair.
        note_wait: receives the seconds that a program of this kind has waited for its start."""
        self.queue = RunQueue(self.sort_waiting, self.may_start, config.queue_limit)
        is_ordered = config.scheduling_policy != ARRIVAL_ORDER
        rules = Rules(
            policy=POLICIES[config.scheduling_policy],
            is_gang=config.features.gang and is_ordered,
            is_fair=config.features.fair_clients and is_ordered,
            ranks_kinds=is_ordered,
            escalate_after_s=config.scheduling_escalate_s if is_ordered else None,
        )
        self.programs = ActivePrograms(rules)
        self.drawn_tokens = 0
        """Tokens of all runs and plain requests so far."""
        self._pair = pair
        self._config = config
        self._send_order = send_order
        self._predictions = predictions
        self._clock = clock
        self._note_wait = note_wait
        self._runs: dict[str, RunState] = {}
        self._requests: dict[str, LengthRequest] = {}
        self._numbers = count()
        self._unmeasured = Capacity(
            kv_tokens=1 << 40, max_running=config.max_running, useful_sequences=USUAL_BATCH
        )
        self._capacity = self._unmeasured
        self._speed = SearchSpeed()
        self._drawing: dict[str, int] = {}
        """Sequences of the runs that have left the queue."""
        self._kv_shares = KvShares()
        self._changed = asyncio.Event()
        self._sent: list[str] = []
        self._sending: asyncio.Task[None] | None = None
        self._estimates: Mapping[str, RunEstimate] = {}
        self._estimated = -1, 0.0
        """The queue's changes and the time at which `_estimates` were made."""

    def set_capacity(self, capacity: Capacity | None) -> None:
        """Set what the engines can compute at once. None if that is not known."""
        self._capacity = capacity or self._unmeasured
        self._speed.set_curve(self._capacity.step_s)

    async def stop(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})

    # ------------------------------------------------------------ runs

    def add_run(
        self, run_id: str, spec: Request, prompt_ids: TokenIds, caller: Caller = ANONYMOUS
    ) -> RunState:
        """Let a run join its program. Returns the state that `note_event` keeps up to date."""
        request = describe_search(spec, prompt_ids)
        state = RunState(run_id, spec, prompt_tokens=len(prompt_ids), arrived_s=self._clock())
        self._runs[run_id] = state
        member = Member(
            kind=caller.choose_kind(Kind.SEARCH),
            outputs=request.outputs,
            width=count_paths_at_once(spec),
            max_tokens=request.max_tokens,
            prompt_tokens=request.num_prompt_tokens,
            kv_share=self._kv_shares.find(spec.strategy),
        )
        self._join(run_id, member, caller.program or run_id, caller.client, request)
        return state

    def find_key(self, run_id: str) -> str:
        """Find the key of a run's program."""
        program = self.programs.find_program(run_id)
        return run_id if program is None else program.key

    def find_client(self, run_id: str) -> str:
        """Find who asked for a run. Empty if that is not known."""
        program = self.programs.find_program(run_id)
        return "" if program is None else program.client

    def note_start(self, run_id: str) -> None:
        """Note that a run has left the queue."""
        member = self.programs.find_member(run_id)
        self._drawing[run_id] = 1 if member is None else member.sequences
        self._speed.add_sequences(self._drawing[run_id], self._clock())
        self.mark_started(self.find_key(run_id))

    def note_event(self, run_id: str, event: Event) -> None:
        run, now_s = self._runs.get(run_id), self._clock()
        if run is None:
            return
        run.observe(event, now_s)
        match event:
            case StepCompleted(token_ids=token_ids):
                self._speed.add_tokens(len(token_ids), now_s)
                self.note_tokens(run_id, len(token_ids))
            case Progress():
                self.programs.note_tokens(run_id, 0, now_s)  # StepCompleted counts them
            case CertaintyUpdated(certainty=float(certainty)) if run.spec.early_exit is not None:
                self._change(run_id, progress=certainty)
            case RunFinished():
                self._learn_kv_share(run)
            case _:
                pass

    def end_run(self, run_id: str) -> None:
        self._speed.add_sequences(-self._drawing.pop(run_id, 0), self._clock())
        run = self._runs.pop(run_id, None)
        if run is not None:
            self.leave(run_id, run.paths.count())

    def _learn_kv_share(self, finished: RunState) -> None:
        """Learn the KV that a run held at its peak, for all runs of its strategy."""
        strategy = finished.spec.strategy
        seen = finished.paths.measure_kv_share(count_paths_at_once(finished.spec))
        if seen is None:
            return
        self._kv_shares.learn(strategy, seen)
        for run_id, run in self._runs.items():
            if run.spec.strategy == strategy:
                self._change(run_id, kv_share=self._kv_shares.find(strategy))

    # ------------------------------------------------------------ plain requests

    def add_request(self, ask: PlainRequest) -> str:
        """Let a plain request join its program. Returns its name as a member."""
        caller = Caller(client=ask.client, program=ask.program, priority=ask.priority)
        request = LengthRequest(
            pair=ask.pair, prompt_ids=ask.prompt_ids, max_tokens=ask.max_tokens, outputs=ask.choices
        )
        member = Member(
            kind=caller.choose_kind(Kind.CHAT),
            outputs=ask.choices,
            max_tokens=ask.max_tokens,
            prompt_tokens=len(ask.prompt_ids),
        )
        name = f"{ask.program} {next(self._numbers)}"
        self._join(name, member, ask.program, ask.client, request)
        return name

    # ------------------------------------------------------------ members of programs

    def _join(
        self, name: str, member: Member, key: str, client: str, request: LengthRequest
    ) -> None:
        self.programs.join(name, member, key, client, self._clock())
        self._requests[name] = request
        self._note_change()
        if self._predictions is not None:
            self._predictions.submit(request, partial(self.set_lengths, name))

    def leave(self, name: str, lengths: OutputLengths | None) -> None:
        """Remove a member that has ended. lengths: of its outputs, if they are known."""
        self.programs.leave(name, self._clock())
        self._note_change()
        request = self._requests.pop(name)
        if self._predictions is not None and lengths is not None:
            self._predictions.learn(FinishedOutputs(request=request, lengths=lengths))

    def _change(self, name: str, **changes: object) -> None:
        self.programs.change(name, **changes)
        self._note_change()

    def set_lengths(self, name: str, lengths: LengthDistribution) -> None:
        """Set the predicted lengths of a member's outputs. More runs may start now."""
        self._change(name, lengths=lengths)
        self.queue.admit()

    def mark_started(self, key: str) -> None:
        """Note that a program has begun: a run of it left the queue, or a request has an output."""
        waited_s = self.programs.note_start(key, self._clock())
        program = self.programs.get(key)
        self._note_change()
        if program is not None and waited_s is not None:
            self._note_wait(program.kind, waited_s)

    def note_tokens(self, name: str, tokens: int) -> None:
        self.drawn_tokens += tokens
        self.programs.note_tokens(name, tokens, self._clock())
        self._note_change()

    # ------------------------------------------------------------ the queue

    def sort_waiting(self, waiting: Sequence[str]) -> list[str]:
        places = {program.key: at for at, program in enumerate(self.order())}
        return sorted(waiting, key=lambda run: places.get(self.find_key(run), len(places)))

    def may_start(self, run_id: str, running: Collection[str]) -> bool:
        """Whether a run may start together with those that run."""
        capacity = self._capacity
        if not self._config.features.admission:
            return len(running) < capacity.max_running
        needs = [self._find_need(run) for run in (run_id, *running)]
        return can_start(needs[0], needs[1:], capacity)

    def _find_need(self, run_id: str) -> Need:
        run = self.programs.find_member(run_id)
        return Need(kv_tokens=0, sequences=0) if run is None else predict_need(run)

    # ------------------------------------------------------------ the order of the engines

    def order(self) -> list[Program]:
        """Order all programs, the first to run first."""
        return self.programs.order(self._clock(), self._capacity.useful_sequences)

    def _note_change(self) -> None:
        if self._config.scheduling_policy == ARRIVAL_ORDER:
            return
        self._changed.set()
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="order")

    async def _send(self) -> None:
        """Send the order while there are programs, at most every `LEAST_INTERVAL_S`."""
        order: list[str] | None = None
        while order != [] or self._changed.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time alone changes the order, too
            self._changed.clear()
            order = [program.key for program in self.order()]
            if order != self._sent:
                self._sent = order
                await self._send_order(order)
            await asyncio.sleep(LEAST_INTERVAL_S)

    # ------------------------------------------------------------ estimates

    def estimate_run(self, run_id: str) -> RunEstimate:
        """Return an estimate at most `KEPT_S` old that knows the queue's last change."""
        changes, made_s = self._estimated
        now_s = asyncio.get_running_loop().time()
        if changes != self.queue.changes or now_s - made_s >= KEPT_S:
            self._estimated = self.queue.changes, now_s
            self._estimates = self.estimate_runs()
        return self._estimates.get(run_id, RunEstimate())

    def estimate_runs(self) -> dict[str, RunEstimate]:
        running, waiting = self.queue.running, self.queue.waiting
        runs = (*running, *waiting)
        positions = (*[None] * len(running), *range(len(waiting)))
        starts = (*[None] * len(running), *self._predict_starts(waiting))
        lengths = [member.predict_output() for member in self._list_members(runs)]
        return {
            run_id: RunEstimate(
                position=position, starts_in_s=start_s, median_tokens=median, tail_tokens=tail
            )
            for run_id, position, start_s, (median, tail) in zip(
                runs, positions, starts, lengths, strict=True
            )
        }

    def estimate_programs(self) -> list[ProgramEstimate]:
        waiting = self.queue.waiting
        queued: dict[str, float | None] = {}
        for run_id, start_s in zip(waiting, self._predict_starts(waiting), strict=True):
            queued.setdefault(self.find_key(run_id), start_s)
        return estimate_programs(self._pair, self.order(), self._clock(), queued)

    def _predict_starts(self, waiting: Sequence[str]) -> list[float | None]:
        return predict_starts(
            self._list_members(self.queue.running),
            self._list_members(waiting),
            self._speed.measure(self._clock()),
        )

    def _list_members(self, runs: Sequence[str]) -> list[Member]:
        found = (self.programs.find_member(run_id) for run_id in runs)
        return [member for member in found if member is not None]


class RunQueue:
    """Holds the waiting and the running runs. Up to `limit` wait; further ones are refused."""

    def __init__(
        self,
        order: Callable[[Sequence[str]], Sequence[str]],
        may_start: Callable[[str, Collection[str]], bool],
        limit: int,
    ) -> None:
        """order: sorts waiting runs, the next one first. may_start: whether a run may start beside
        those that run. `check_room` asks it for an unknown run "", to learn whether any could."""
        self._order = order
        self._may_start = may_start
        self._limit = limit
        self._running: dict[str, None] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self.changes = 0
        """How often a run has entered, started or left."""

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> Sequence[str]:
        """The next one first."""
        return self._order(list(self._waiting))

    @property
    def sizes(self) -> tuple[int, int]:
        """How many runs wait, and how many run."""
        return len(self._waiting), len(self._running)

    def check_room(self) -> None:
        """Raises QueueFull when no further run may wait."""
        waiting = len(self._waiting)
        if waiting >= self._limit and (waiting or not self._may_start("", self._running)):
            raise QueueFull(
                f"{len(self._running)} runs are running and {waiting} are waiting",
                hint="try again later, or raise queue_limit",
            )

    def reserve(self, run_id: str) -> None:
        """Join the queue. Raises QueueFull."""
        self.check_room()
        self.changes += 1
        self._waiting[run_id] = asyncio.get_running_loop().create_future()
        self.admit()

    @asynccontextmanager
    async def wait_turn(self, run_id: str) -> AsyncIterator[None]:
        """Wait until the run is admitted, and keep its place for the block."""
        admitted = self._waiting.get(run_id)
        try:
            if admitted is not None:
                await admitted
            yield
        finally:
            self.leave(run_id)

    def leave(self, run_id: str) -> None:
        """Stop running or waiting, and admit the next run. Does nothing once the run has left."""
        if run_id not in self._running and run_id not in self._waiting:
            return
        self.changes += 1
        self._running.pop(run_id, None)
        self._waiting.pop(run_id, None)
        self.admit()

    def admit(self) -> None:
        """Admit waiting runs, in their order, up to the first that may not start."""
        while self._waiting:
            run_id = self.waiting[0]
            if not self._may_start(run_id, self._running):
                return
            self.changes += 1
            admitted = self._waiting.pop(run_id)
            self._running[run_id] = None
            if not admitted.done():
                admitted.set_result(None)


async def measure_capacity(
    generator: Generator,
    verifier: Verifier,
    curve: CostCurve,
    *,
    max_running: int,
    max_sequences: int,
    is_shared: bool,
) -> Capacity:
    """Find how much the engines can compute at once. Raises EngineDead. curve: the generator's.
    max_sequences: most in one of its steps. is_shared: whether memory moves between the engines, so
    that all of it counts for both together."""
    views, step_s = (await generator.view(), await verifier.view()), curve.decode_at(CONTEXT_TOKENS)
    if is_shared:
        room = sum(view.quota_blocks * view.block_bytes for view in views)
        kv_tokens = int(room / sum(view.block_bytes / view.block_tokens for view in views))
    else:
        used = (view for view in views if view.blocks_total)
        kv_tokens = min(view.quota_blocks * view.block_tokens for view in used)
    return Capacity(
        kv_tokens=kv_tokens,
        max_running=max_running,
        useful_sequences=find_useful_batch(step_s, max_sequences),
        step_s=step_s,
    )
