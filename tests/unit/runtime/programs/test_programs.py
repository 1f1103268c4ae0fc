"""The programs of the daemon: who is on the board, what starts, and what the engines are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Any

import pytest

from flashedge.config import load_config
from flashedge.engine.http_requests import PlainAsk
from flashedge.events import CertaintyUpdated, Progress, StepCompleted
from flashedge.optimizations import Features
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.plain_requests import PlainRequests
from flashedge.runtime.programs.asker import NOBODY, Asker
from flashedge.runtime.programs.order_sender import LOOK_S
from flashedge.runtime.programs.outlook import Outlook
from flashedge.runtime.programs.pair_scheduler import PairScheduler
from flashedge.runtime.programs.plain import ProgramRequests
from flashedge.runtime.programs.programs import Programs
from flashedge.runtime.queue import RunQueue
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.admission import Capacity
from flashedge.types import NodeId
from scripts.lab.sim.clock import VirtualTimePolicy
from tests.support.runtime_rig import BEAM


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


class Rig:
    """Programs on virtual time, and the orders that the engines got."""

    def __init__(self, **settings: Any) -> None:
        config = load_config({"scheduling_policy": "shortest", **settings}, environ={})
        self.sent: list[tuple[str, ...]] = []
        clock = asyncio.get_running_loop().time
        scheduler = PairScheduler("bundled", config, self._send, clock=clock)
        self.programs, self.queue = scheduler.programs, scheduler.queue
        self.outlooks = scheduler.outlooks

    async def _send(self, keys: Sequence[str]) -> None:
        self.sent.append(tuple(keys))

    def add(self, run_id: str, asker: Asker = NOBODY) -> None:
        self.programs.add_run(run_id, BEAM, tuple(range(10)), asker)

    def predict(self, key: str, median: float) -> None:
        self.programs.predict(key, LogT(mu=log(median), sigma=0.05))

    def step(self, run_id: str, tokens: int) -> None:
        ids = tuple(range(tokens))
        event = StepCompleted(
            node=1, token_ids=ids, logprobs=(), text="", steps=("",), finish="stop"
        )
        self.programs.note_event(run_id, event)


async def test_the_engines_get_the_order_whenever_it_changes() -> None:
    rig = Rig()
    rig.add("a")
    rig.add("b")
    await asyncio.sleep(0.1)
    assert rig.sent == [("a", "b")]
    rig.predict("b", 50)
    await asyncio.sleep(0.1)
    assert rig.sent[-1] == ("b", "a")
    rig.programs.end_run("b")
    rig.programs.end_run("b")
    rig.programs.end_run("a")
    await asyncio.sleep(2 * LOOK_S)
    assert rig.sent[-1] == ()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left to send"


async def test_a_program_that_comes_right_after_the_last_one_is_sent_too() -> None:
    rig = Rig()
    rig.add("a")
    await asyncio.sleep(0.1)
    rig.programs.end_run("a")
    await asyncio.sleep(0.01)
    assert rig.sent[-1] == ()
    rig.add("b")
    await asyncio.sleep(0.1)
    assert rig.sent[-1] == ("b",)
    await rig.programs.stop()


async def test_waiting_alone_changes_the_order() -> None:
    rig = Rig(scheduling_escalate_s=30.0)
    rig.add("long")
    rig.predict("long", 1000)
    await asyncio.sleep(20)
    rig.add("short")
    rig.predict("short", 10)
    await asyncio.sleep(0.1)
    assert rig.sent[-1] == ("short", "long")
    await asyncio.sleep(15)
    assert rig.sent[-1] == ("long", "short"), "it has waited for more than 30 s"
    await rig.programs.stop()


async def test_arrival_order_leaves_the_engines_queues_alone() -> None:
    rig = Rig(scheduling_policy="fcfs")
    rig.add("a")
    rig.predict("a", 50)
    rig.add("b")
    await asyncio.sleep(10)
    assert rig.sent == []
    assert list(rig.programs.order(["a", "b"])) == ["a", "b"]


async def test_requests_with_one_key_are_one_program() -> None:
    rig = Rig()
    rig.add("run-1", Asker(program="job", client="agent"))
    rig.add("run-2", Asker(program="job", client="agent"))
    (standing,) = rig.outlooks.list_standings()
    assert (standing.key, standing.client) == ("job", "agent")
    assert rig.programs.find_program("run-2") == "job"
    rig.programs.end_run("run-1")
    assert len(rig.outlooks.list_standings()) == 1, "its second member is still here"
    rig.programs.end_run("run-2")
    assert rig.outlooks.list_standings() == []
    await rig.programs.stop()


async def test_batch_work_waits_for_everything_else() -> None:
    rig = Rig()
    rig.add("batch", Asker(priority=1))
    rig.add("search")
    rig.predict("batch", 1)
    assert list(rig.programs.order(["batch", "search"])) == ["search", "batch"]
    await rig.programs.stop()


async def test_tokens_and_certainty_shorten_what_is_left() -> None:
    rig = Rig()
    rig.add("a")
    rig.predict("a", 100)
    whole = rig.outlooks.list_standings()[0].left_tokens
    assert whole == pytest.approx(BEAM.n * 100, rel=0.01)
    rig.step("a", 200)
    assert rig.outlooks.list_standings()[0].left_tokens == pytest.approx(whole - 200, rel=0.01)
    sure = CertaintyUpdated(certainty=0.9, answers=1)
    rig.programs.note_event("a", sure)
    assert rig.outlooks.list_standings()[0].left_tokens == pytest.approx(whole - 200, rel=0.01), (
        "a run without early exit goes on however sure it is"
    )
    await rig.programs.stop()


async def test_the_queue_starts_as_many_runs_as_the_memory_holds() -> None:
    rig = Rig(max_running=8)
    queue = RunQueue(rig.programs, 16)
    rig.programs.set_capacity(Capacity(kv_tokens=1700, max_running=8, useful_sequences=256))
    for name in "abc":
        rig.add(name)
        rig.predict(name, 100)  # eight paths of 100 tokens behind 10 of the prompt
        queue.reserve(name)
    assert (queue.running, queue.waiting) == (2, 1)
    rig.programs.end_run("a")
    queue.leave("a")
    assert (queue.running, queue.waiting) == (2, 0)
    await rig.programs.stop()


async def test_runs_that_may_exit_early_need_room_for_a_group() -> None:
    """Of 16 paths the first 5 are drawn, then the other 11."""
    rig = Rig()
    room = Capacity(kv_tokens=10_000, max_running=8, useful_sequences=32)
    rig.programs.set_capacity(room)
    whole = replace(BEAM, strategy="self_consistency", n=16, options={})
    for number in range(4):
        spec = replace(whole, early_exit=ExitOptions(policy="static")) if number < 2 else whole
        rig.programs.add_run(f"run-{number}", spec, tuple(range(10)), NOBODY)
        rig.predict(f"run-{number}", 10)
    assert rig.programs.may_start("run-1", ["run-0"])
    assert not rig.programs.may_start("run-2", ["run-0", "run-1"]), "11 and 11 leave 10"
    assert rig.programs.may_start("run-3", ["run-2"])
    assert not rig.programs.may_start("run-0", ["run-2", "run-3"])
    await rig.programs.stop()


async def test_without_admission_by_memory_max_running_decides() -> None:
    rig = Rig(max_running=3, features=Features(admission=False))
    queue = RunQueue(rig.programs, 16)
    rig.programs.set_capacity(Capacity(kv_tokens=1, max_running=3, useful_sequences=1))
    for name in "abcd":
        rig.add(name)
        queue.reserve(name)
    assert (queue.running, queue.waiting) == (3, 1)
    await rig.programs.stop()


async def test_the_shortest_waiting_run_starts_next() -> None:
    rig = Rig(max_running=1)
    queue = RunQueue(rig.programs, 16)
    for name, median in (("a", 500), ("b", 400), ("c", 30)):
        rig.add(name)
        rig.predict(name, median)
        queue.reserve(name)
    assert [queue.position(name) for name in "abc"] == [None, 1, 0]
    queue.leave("a")
    assert [queue.position(name) for name in "abc"] == [None, 0, None]
    await rig.programs.stop()


class QueuedRig(Rig):
    """Programs behind a queue in which each run of BEAM is 8 paths of the predicted length."""

    def submit(self, run_id: str, median: float | None, asker: Asker = NOBODY) -> None:
        self.add(run_id, asker)
        if median is not None:
            self.predict(run_id, median)
        self.queue.reserve(run_id)
        if run_id in self.queue.view().running:
            self.programs.note_start(run_id)

    def find_outlook(self, run_id: str) -> Outlook:
        return self.outlooks.find_all()[run_id]

    async def draw(self, run_id: str, tokens_per_s: int, seconds: int) -> None:
        for _ in range(seconds):
            await asyncio.sleep(1)
            self.step(run_id, tokens_per_s)


async def test_a_start_is_expected_once_a_rate_was_measured() -> None:
    rig = QueuedRig(max_running=1)
    rig.submit("a", 100)
    rig.submit("b", 200)
    rig.submit("c", 300)
    assert rig.find_outlook("b") == Outlook(
        position=0, median_tokens=pytest.approx(200), tail_tokens=pytest.approx(217, rel=0.02)
    )
    await rig.draw("a", 20, 5)
    left_s = (BEAM.n * 100 - 100) / 20
    assert rig.find_outlook("b").starts_in_s == pytest.approx(left_s, rel=0.1)
    assert rig.find_outlook("c").starts_in_s == pytest.approx(left_s + BEAM.n * 200 / 20, rel=0.1)
    assert rig.find_outlook("a").starts_in_s is None, "it runs"
    assert rig.find_outlook("a").median_tokens == pytest.approx(100, rel=0.01)
    standings = rig.outlooks.list_standings()
    assert [s.key for s in standings] == ["a", "b", "c"]
    assert [s.place for s in standings] == [None, 0, 1]
    starts = [s.starts_in_s for s in standings]
    assert starts == [None, rig.find_outlook("b").starts_in_s, rig.find_outlook("c").starts_in_s]
    await rig.programs.stop()


async def test_no_start_is_expected_behind_what_nothing_predicts() -> None:
    rig = QueuedRig(max_running=1)
    rig.submit("a", None)
    rig.submit("b", 200)
    await rig.draw("a", 20, 5)
    outlook = rig.find_outlook("b")
    assert (outlook.position, outlook.starts_in_s) == (0, None)
    await rig.programs.stop()


async def test_a_run_of_a_program_that_has_started_waits_too() -> None:
    rig = QueuedRig(max_running=1)
    job = Asker(program="job")
    rig.submit("a", 100, job)
    rig.submit("b", 100, job)
    await rig.draw("a", 20, 5)
    outlook = rig.find_outlook("b")
    assert outlook.position == 0
    assert outlook.starts_in_s == pytest.approx((BEAM.n * 100 - 100) / 20, rel=0.1)
    (standing,) = rig.outlooks.list_standings()
    assert (standing.place, standing.starts_in_s) == (None, None)
    await rig.programs.stop()


async def test_runs_of_one_program_are_admitted_like_those_of_several() -> None:
    """Each needs room for its own 8 paths, and leaves it when it ends."""
    rig = QueuedRig(max_running=32)
    rig.programs.set_capacity(Capacity(kv_tokens=1 << 20, max_running=32, useful_sequences=64))
    job = Asker(program="job")
    for number in range(9):
        rig.submit(f"job-{number}", 100, job)
    assert len(rig.queue.view().running) == 8
    for number in range(8):
        rig.programs.end_run(f"job-{number}")
        rig.queue.leave(f"job-{number}")
    ((program, _),) = rig.programs.list_ordered()
    assert (program.outputs, program.sequences) == (8, 8)
    for number in range(7):
        rig.submit(f"other-{number}", 100)
    assert rig.queue.view().waiting == ()
    await rig.programs.stop()


async def test_a_run_that_is_certain_says_nothing_of_the_others_of_its_program() -> None:
    rig = Rig()
    spec = replace(BEAM, strategy="self_consistency", early_exit=ExitOptions())
    for run_id in ("sure", "new"):
        rig.programs.add_run(run_id, spec, tuple(range(10)), Asker(program="job"))
        rig.predict(run_id, 100)
    (before,) = rig.outlooks.list_standings()
    sure = CertaintyUpdated(certainty=1.0, answers=1, measures={}, progress=1, tokens=1, answer="4")
    rig.programs.note_event("sure", sure)
    (after,) = rig.outlooks.list_standings()
    assert after.left_tokens == pytest.approx(before.left_tokens / 2, rel=0.03)
    rig.programs.end_run("sure")
    (after,) = rig.outlooks.list_standings()
    assert after.left_tokens == pytest.approx(before.left_tokens / 2, rel=0.05)
    await rig.programs.stop()


@pytest.mark.parametrize(("thinks_s", "goes_on"), [(20.0, True), (100.0, False)])
async def test_an_agents_next_question_goes_on_where_its_program_was(
    thinks_s: float, goes_on: bool
) -> None:
    rig = Rig()
    job = Asker(program="job")
    rig.add("first", job)
    rig.programs.note_start("first")
    rig.programs.end_run("first")
    await asyncio.sleep(thinks_s)
    rig.add("other")
    rig.predict("other", 10)
    rig.add("next", job)
    rig.predict("next", 1000)
    expected = ["next", "other"] if goes_on else ["other", "next"]
    assert list(rig.programs.order(["other", "next"])) == expected
    await rig.programs.stop()


async def test_a_program_that_returns_waits_in_the_queue_like_any_other() -> None:
    rig = QueuedRig(max_running=1)
    job = Asker(program="job")
    rig.submit("first", 100, job)
    rig.programs.end_run("first")
    rig.queue.leave("first")
    await asyncio.sleep(5)
    rig.submit("other", 100)
    rig.submit("next", 100, job)
    standings = {standing.key: standing for standing in rig.outlooks.list_standings()}
    assert (standings["job"].has_started, standings["job"].place) == (False, 0)
    assert standings["job"].waited_s == 0.0
    await rig.programs.stop()


async def test_a_search_that_draws_a_long_step_does_not_wait() -> None:
    rig = Rig(scheduling_escalate_s=30.0)
    rig.add("batch", Asker(priority=1))
    rig.programs.note_start("batch")
    for _ in range(40):
        await asyncio.sleep(1)
        rig.programs.note_event("batch", Progress(tokens=((NodeId(1), 5),)))
    rig.programs.add_request(PlainAsk(program="chat", max_tokens=64), NOBODY)
    assert list(rig.programs.order(["batch", "chat"])) == ["chat", "batch"]
    await rig.programs.stop()


async def test_by_prefix_a_prompt_that_is_open_already_goes_first() -> None:
    rig = Rig(scheduling_policy="prefix")
    rig.programs.add_run("a", BEAM, (1, 2, 3, 4, 5), NOBODY)
    rig.programs.note_start("a")
    rig.programs.add_run("other", BEAM, (1, 9, 9, 9, 9), NOBODY)
    rig.programs.add_run("alike", BEAM, (1, 2, 3, 9, 9), NOBODY)
    rig.programs.add_run("later", BEAM, (1, 9, 9, 7, 7), NOBODY)
    assert list(rig.programs.order(["other", "alike"])) == ["alike", "other"]
    rig.programs.note_start("other")
    assert list(rig.programs.order(["alike", "later"])) == ["alike", "later"]
    rig.programs.note_start("alike")
    rig.programs.end_run("alike")
    rig.programs.add_run("same", BEAM, (1, 2, 3, 9, 9), NOBODY)
    assert list(rig.programs.order(["later", "same"])) == ["same", "later"], "it is cached still"
    await rig.programs.stop()


async def test_tokens_of_plain_requests_are_no_speed_of_searches() -> None:
    rig = QueuedRig(max_running=1)
    rig.submit("a", 100)
    rig.submit("b", 200)
    chat = rig.programs.add_request(PlainAsk(program="chat", max_tokens=64), NOBODY)
    await rig.draw("a", 20, 4)
    before = rig.find_outlook("b").starts_in_s
    rig.programs.note_tokens(chat.member, 1000)
    assert rig.find_outlook("b").starts_in_s == before
    await rig.programs.stop()


async def test_the_wait_of_each_program_is_noted_once() -> None:
    seen: list[tuple[str, float]] = []
    config = load_config({"scheduling_policy": "fcfs"}, environ={})
    clock = asyncio.get_running_loop().time
    programs = Programs(
        config,
        _send_nothing,
        clock=clock,
        note_wait=lambda kind, s: seen.append((kind, s)),
    )
    programs.add_run("run", BEAM, tuple(range(10)), Asker(priority=1))
    programs.add_request(PlainAsk(program="chat", max_tokens=64), NOBODY)
    await asyncio.sleep(3)
    programs.mark_started("chat")
    programs.mark_started("chat")
    await asyncio.sleep(4)
    programs.note_start("run")
    assert seen == [("chat", 3.0), ("batch", 7.0)]


async def _send_nothing(keys: Sequence[str]) -> None: ...


async def test_a_plain_request_is_a_program_while_it_is_open() -> None:
    rig = Rig()
    plain = ProgramRequests(PlainRequests(Metrics()), lambda pair: rig.programs)
    ask = PlainAsk(
        program="chat", client="person", choices=2, prompt_ids=tuple(range(7)), max_tokens=64
    )

    async def abort() -> None: ...

    with plain.open(ask, abort) as request:
        (before,) = rig.outlooks.list_standings()
        assert (before.kind, before.has_started) == ("chat", False)
        request.note(prompt_tokens=7, new_tokens=3, finishes=())
        (during,) = rig.outlooks.list_standings()
        assert during.has_started
        assert during.left_tokens < before.left_tokens
    assert rig.outlooks.list_standings() == []
    await rig.programs.stop()
