"""Arrivals, predictions, progress, cancels, waiting and changes of memory in any order: no run is
lost, none starves, and no more run than the memory holds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashedge.config import load_config
from flashedge.runtime.programs.scheduler import PairScheduler
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.admission import Capacity, predict_need
from flashedge.scheduling.programs.policies import POLICIES
from flashedge.scheduling.programs.program import Caller, Program
from tests.support.runtime_rig import BEAM

ESCALATE_S = 40.0
ROOMS = st.builds(
    Capacity,
    kv_tokens=st.integers(1, 4000),
    max_running=st.integers(1, 6),
    useful_sequences=st.integers(1, 64),
)


class ProgramMachine(RuleBasedStateMachine):
    """The queue and the board of a daemon, whose clock and engines are the machine's."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), room=ROOMS)
    def start(self, policy: str, room: Capacity) -> None:
        self.loop = asyncio.new_event_loop()
        self.now_s = 0.0
        self.room = room
        self.arrived_s: dict[str, float] = {}
        self.waiting: dict[str, None] = {}
        self.running: dict[str, None] = {}
        self.over: set[str] = set()
        limits = {"max_running": 6, "queue_limit": 1000, "scheduling_escalate_s": ESCALATE_S}
        config = load_config({**limits, "scheduling_policy": policy}, environ={})
        self.scheduler = PairScheduler("bundled", config, self._ignore, clock=lambda: self.now_s)
        self.scheduler.set_capacity(room)
        self.queue = self.scheduler.queue

    async def _ignore(self, keys: Sequence[str]) -> None: ...

    def teardown(self) -> None:
        """Whatever happened: once the running ones end, every run gets its turn."""
        if not hasattr(self, "loop"):
            return
        while self.running:
            self._do(lambda: self._end(next(iter(self.running))))
        assert not self.waiting
        assert self.over == set(self.arrived_s)
        self.loop.run_until_complete(self.scheduler.stop())
        self.loop.close()

    # ------------------------------------------------------------ what happens

    @rule(
        paths=st.integers(1, 32),
        priority=st.integers(-1, 1),
        client=st.sampled_from(("agent", "person")),
        program=st.sampled_from((None, None, "job", "other job")),
    )
    def submit(self, paths: int, priority: int, client: str, program: str | None) -> None:
        run = f"run-{len(self.arrived_s)}"

        def do() -> None:
            caller = Caller(client=client, priority=priority, program=program)
            self.scheduler.add_run(run, replace(BEAM, n=paths), tuple(range(20)), caller)
            self.arrived_s[run] = self.now_s
            self.waiting[run] = None
            self.queue.reserve(run)

        self._do(do)

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data(), median=st.floats(1, 400))
    def predict(self, data: st.DataObject, median: float) -> None:
        run = data.draw(st.sampled_from([*self.waiting, *self.running]))
        self._do(lambda: self.scheduler.set_lengths(run, LogT(mu=log(median), sigma=0.3)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 300))
    def draw_tokens(self, data: st.DataObject, tokens: int) -> None:
        run = data.draw(st.sampled_from(list(self.running)))
        self._do(lambda: self.scheduler.note_tokens(run, tokens))

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def end_or_cancel(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from([*self.waiting, *self.running]))
        self._do(lambda: self._end(run))

    @rule(seconds=st.floats(0.1, 60))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(room=ROOMS)
    def change_room(self, room: Capacity) -> None:
        def do() -> None:
            self.room = room
            self.scheduler.set_capacity(room)
            self.queue.admit()

        self._do(do)

    # ------------------------------------------------------------ what always holds

    @invariant()
    def no_run_is_lost(self) -> None:
        assert list(self.queue.running) == list(self.running)
        assert sorted(self.queue.waiting) == sorted(self.waiting)

    @invariant()
    def something_runs_while_something_waits(self) -> None:
        assert self.running or not self.waiting

    # ------------------------------------------------------------ the rig

    def _end(self, run: str) -> None:
        self.running.pop(run, None)
        self.waiting.pop(run, None)
        self.over.add(run)
        self.scheduler.end_run(run)
        self.queue.leave(run)

    def _do(self, act: Callable[[], Any]) -> None:
        async def inside() -> None:
            act()

        before = dict(self.running)
        self.loop.run_until_complete(inside())
        self._check_started([run for run in self.queue.running if run not in before])

    def _check_started(self, started: list[str]) -> None:
        """Those that started fit, and passed nobody who had waited too long."""
        for run in started:
            self.waiting.pop(run, None)
            self.running[run] = None
        if not started:
            return
        members = [self.scheduler.programs.find_member(run) for run in self.running]
        needs = [predict_need(member) for member in members if member is not None]
        assert len(needs) == len(self.running)
        if len(self.running) > 1:
            assert sum(need.kv_tokens for need in needs) <= self.room.kv_tokens
            assert sum(need.sequences for need in needs) <= self.room.useful_sequences
        assert len(self.running) <= self.room.max_running
        for run in started:
            passed = [
                other
                for other in self.waiting
                if self.now_s - self._find(other).waits_since_s >= ESCALATE_S
                and self._find(other).arrived_s < self._find(run).arrived_s
            ]
            assert not passed, f"{run} passed {passed}"

    def _find(self, run: str) -> Program:
        program = self.scheduler.programs.find_program(run)
        assert program is not None
        return program


TestProgramMachine = ProgramMachine.TestCase
TestProgramMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
