"""The programs of one pair: it registers runs and plain requests on the board, lets runs start by
its order, and sends that order to the engines.

A run, or a plain request, joins a program: its own, or the one whose key it carries (`roster.py`).
The order is sent again whenever it changes (`order_sender.py`).

Ref: ADR 18; arXiv 2412.20993 App. D.3.1; arXiv 2604.00499 §4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from flashedge.config import Config
from flashedge.engine.http_requests import PlainAsk
from flashedge.events import CertaintyUpdated, Event, Progress, RunFinished, StepCompleted
from flashedge.runtime.lengths.path_counter import PathCounter
from flashedge.runtime.lengths.predictions import Predictions, describe_search
from flashedge.runtime.programs.asker import Asker
from flashedge.runtime.programs.cached_prompts import CachedPrompts, NoPrompts, Prompts
from flashedge.runtime.programs.order_sender import OrderSender, SendOrder
from flashedge.runtime.programs.roster import Roster
from flashedge.runtime.programs.search_speed import SearchSpeed
from flashedge.runtime.queue import QueueView
from flashedge.runtime.request.request import Request
from flashedge.runtime.request.strategies import count_paths_at_once
from flashedge.scheduling.lengths.distribution import LengthDistribution
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from flashedge.scheduling.programs.admission import Capacity, Need, can_start, predict_need
from flashedge.scheduling.programs.board import ProgramBoard, Rules
from flashedge.scheduling.programs.expected_start import RunWork, predict_starts
from flashedge.scheduling.programs.kv_share import KvShares
from flashedge.scheduling.programs.policies import POLICIES
from flashedge.scheduling.programs.program import Kind, Program
from flashedge.scheduling.programs.work import Work, estimate_work
from flashedge.types import TokenIds

ARRIVAL_ORDER = "fcfs"
"""The policy under which the engines' own queues stay as they are."""
BY_PREFIX = "prefix"
"""The policy that asks which prompts are cached."""
USUAL_BATCH = 256
"""Sequences that engines of unknown speed have use for."""

NoteWait = Callable[[Kind, float], None]
"""Notes how many seconds a program of this kind has waited for its start."""


def note_nothing(kind: Kind, waited_s: float) -> None:
    """A `NoteWait` where nobody asks."""


def build_rules(config: Config) -> Rules:
    """The rules that the configuration asks for."""
    is_ordered = config.scheduling_policy != ARRIVAL_ORDER
    return Rules(
        policy=POLICIES[config.scheduling_policy],
        is_gang=config.features.gang and is_ordered,
        is_fair=config.features.fair_clients and is_ordered,
        ranks_kinds=is_ordered,
        escalate_after_s=config.scheduling_escalate_s if is_ordered else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """What is known of a run that is not over."""

    spec: Request
    request: LengthRequest
    paths: PathCounter = field(default_factory=lambda: PathCounter(sees_progress=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A plain request that is a member of a program."""

    member: str
    request: LengthRequest


class Programs:
    """Implements `runtime.queue.Admission`."""

    def __init__(
        self,
        config: Config,
        send_order: SendOrder,
        predictions: Predictions | None = None,
        clock: Callable[[], float] = time.monotonic,
        note_wait: NoteWait = note_nothing,
    ) -> None:
        self._config = config
        self._sender = OrderSender(self._order, send_order)
        self._predictions = predictions
        self._note_wait = note_wait
        self._clock = clock
        self._board = ProgramBoard(build_rules(config))
        self._roster = Roster(self._board, clock, self._note_change)
        self._numbers = count()
        """Of plain requests."""
        asks = config.scheduling_policy == BY_PREFIX
        self._prompts: Prompts = CachedPrompts() if asks else NoPrompts()
        self._runs: dict[str, RunProgress] = {}
        self.drawn_tokens = 0
        """By the runs and plain requests of this pair since the daemon began."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when less room may be needed than was thought: more runs may start now."""
        self._unmeasured = Capacity(
            kv_tokens=1 << 40, max_running=config.max_running, useful_sequences=USUAL_BATCH
        )
        self._capacity = self._unmeasured
        self._speed = SearchSpeed()
        self._kv_shares = KvShares()

    # ------------------------------------------------------------ life

    def set_capacity(self, capacity: Capacity | None) -> None:
        """What the engines have room for. None: that is not known."""
        self._capacity = capacity or self._unmeasured
        self._speed.set_curve(self._capacity.step_s)

    async def stop(self) -> None:
        await self._sender.stop()

    # ------------------------------------------------------------ runs

    def add_run(self, run_id: str, spec: Request, prompt_ids: TokenIds, asker: Asker) -> None:
        """A run was submitted."""
        request = describe_search(spec, prompt_ids)
        self._runs[run_id] = RunProgress(spec=spec, request=request)
        self._join(
            run_id,
            asker.program or run_id,
            request,
            asker,
            Kind.SEARCH,
            width=count_paths_at_once(spec),
            kv_share=self._kv_shares.find(spec.strategy),
        )

    def find_program(self, run_id: str) -> str:
        """The key of a run's program."""
        return self._roster.find_program(run_id) or run_id

    def note_start(self, run_id: str) -> None:
        """The run has left the queue."""
        self._speed.start(run_id, self._measure_work(run_id).outputs, self._clock())
        self._roster.change(run_id, started_s=self._clock())
        self.mark_started(self.find_program(run_id))
        run = self._runs.get(run_id)
        if run is not None:
            self._note_prompt(run.request.prompt_ids)

    def note_event(self, run_id: str, event: Event) -> None:
        """Follow a run's progress. An unknown run has none."""
        run = self._runs.get(run_id)
        if run is None:
            return
        run.paths.observe(event)
        match event:
            case StepCompleted(token_ids=token_ids):
                self.drawn_tokens += len(token_ids)
                self._speed.add(len(token_ids), self._clock())
                self._roster.note_tokens(run_id, len(token_ids))
            case Progress():
                self._roster.note_service(run_id)
            case CertaintyUpdated(certainty=float(certainty)) if run.spec.early_exit is not None:
                self._roster.change(run_id, progress=certainty)
            case RunFinished():
                self._learn_kv_share(run)
            case _:
                pass

    def end_run(self, run_id: str) -> None:
        """The run is over, however it ended. Again, this does nothing."""
        self._speed.end(run_id, self._clock())
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._roster.leave(run_id)
            self._learn(run.request, run.paths.count())

    # ------------------------------------------------------------ plain requests

    def add_request(self, ask: PlainAsk, asker: Asker) -> OpenRequest:
        """A plain request has arrived. The engines have it already."""
        request = LengthRequest(
            pair=ask.pair,
            prompt_ids=ask.prompt_ids,
            max_tokens=ask.max_tokens,
            outputs=ask.choices,
        )
        member = f"{ask.program} {next(self._numbers)}"
        self._join(member, ask.program, request, asker, Kind.CHAT, is_served=True)
        self._note_prompt(request.prompt_ids)
        return OpenRequest(member=member, request=request)

    def end_request(self, ended: OpenRequest, lengths: OutputLengths | None) -> None:
        """A plain request is over. lengths: of its outputs, None where they are not known."""
        self._roster.leave(ended.member)
        self._learn(ended.request, lengths)

    def mark_started(self, key: str) -> None:
        """A member of the program runs. The first one counts."""
        program, waited_s = self._board.get(key), self._roster.mark_started(key)
        if program is not None and waited_s is not None:
            self._note_wait(program.kind, waited_s)

    def note_tokens(self, member: str, tokens: int) -> None:
        """A member has drawn so many more tokens."""
        self.drawn_tokens += tokens
        self._roster.note_tokens(member, tokens)

    # ------------------------------------------------------------ lengths

    def predict(self, member: str, lengths: LengthDistribution) -> None:
        """The prediction of a member's outputs has arrived."""
        self._roster.change(member, lengths=lengths)
        self.on_change()

    def _learn(self, request: LengthRequest, lengths: OutputLengths | None) -> None:
        if self._predictions is not None and lengths is not None:
            self._predictions.learn(FinishedOutputs(request=request, lengths=lengths))

    def _learn_kv_share(self, finished: RunProgress) -> None:
        """Let what a run held at its peak count for all runs of its strategy."""
        strategy = finished.spec.strategy
        seen = finished.paths.measure_kv_share(count_paths_at_once(finished.spec))
        if seen is None:
            return
        self._kv_shares.learn(strategy, seen)
        for run_id, run in self._runs.items():
            if run.spec.strategy == strategy:
                self._roster.change(run_id, kv_share=self._kv_shares.find(strategy))

    # ------------------------------------------------------------ members of a program

    def _join(
        self,
        member: str,
        key: str,
        request: LengthRequest,
        asker: Asker,
        usual: Kind,
        *,
        width: int | None = None,
        kv_share: float = 1.0,
        is_served: bool = False,
    ) -> None:
        """Add a member to a program now, as long as its limit; its prediction arrives later.

        is_served: whether the engines have it already.
        """
        now_s = self._clock()
        program = Program(
            key=key,
            client=asker.client,
            kind=asker.choose_kind(usual),
            arrived_s=now_s,
            outputs=request.outputs,
            width=width,
            max_tokens=request.max_tokens,
            prompt_tokens=request.num_prompt_tokens,
            started_s=now_s if is_served else None,
            shared_tokens=self._prompts.count_shared(request.prompt_ids),
            kv_share=kv_share,
        )
        self._roster.join(member, program)
        if self._predictions is not None:
            self._predictions.submit(request, partial(self.predict, member))

    def _note_prompt(self, prompt: TokenIds) -> None:
        """The engines compute this prompt, from which what waits may gain."""
        if not self._prompts.note(prompt):
            return
        for run_id, run in self._runs.items():
            waiting = self._roster.get(run_id)
            if waiting is not None and waiting.started_s is None:
                shared = self._prompts.count_shared(run.request.prompt_ids)
                self._roster.change(run_id, shared_tokens=shared)

    # ------------------------------------------------------------ Admission

    def order(self, waiting: Sequence[str]) -> Sequence[str]:
        """See `runtime.queue.Admission`."""
        places = {key: at for at, key in enumerate(self._order())}
        last = len(places)
        return sorted(waiting, key=lambda run: places.get(self.find_program(run), last))

    def may_start(self, run_id: str, running: Collection[str]) -> bool:
        """See `runtime.queue.Admission`."""
        capacity = self._capacity
        if not self._config.features.admission:
            return len(running) < capacity.max_running
        return can_start(self._find_need(run_id), [self._find_need(r) for r in running], capacity)

    def _find_need(self, run_id: str) -> Need:
        run = self._roster.get(run_id)
        return Need(kv_tokens=0, sequences=0) if run is None else predict_need(run)

    # ------------------------------------------------------------ what is known of them

    def list_ordered(self) -> list[tuple[Program, Work]]:
        """All programs, in their order, each with what it has left."""
        return [
            (program, self._board.find_work(key))
            for key in self._order()
            if (program := self._board.get(key)) is not None
        ]

    def get_run(self, run_id: str) -> Program | None:
        """What one run does, as a part of its program. None for one that is over."""
        return self._roster.get(run_id)

    def now_s(self) -> float:
        """The time by which programs arrive and start."""
        return self._clock()

    def predict_starts(self, runs: QueueView) -> list[float | None]:
        """Seconds until each waiting run of the queue starts, as far as that is known."""
        running = [self._measure_work(run_id) for run_id in runs.running]
        waiting = [self._measure_work(run_id) for run_id in runs.waiting]
        return predict_starts(running, waiting, self._speed.measure(self._clock()))

    def _measure_work(self, run_id: str) -> RunWork:
        """What a run still generates."""
        run = self._roster.get(run_id)
        if run is None:
            return RunWork(left_tokens=0.0, outputs=1)
        left = None if run.lengths is None else estimate_work(run).expected
        return RunWork(left_tokens=left, outputs=run.sequences)

    @property
    def policy(self) -> str:
        return self._config.scheduling_policy

    # ------------------------------------------------------------ the order

    def _order(self) -> tuple[str, ...]:
        return self._board.order(self._clock(), self._capacity.useful_sequences)

    def _note_change(self) -> None:
        if self.policy != ARRIVAL_ORDER:
            self._sender.note_change()
