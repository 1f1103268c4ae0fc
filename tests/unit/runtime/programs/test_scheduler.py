"""The scheduler of a pair: who is active, what starts, who waits, and what the engines are told."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import Any

import pytest
import pytest_asyncio

from flashedge.config import load_config
from flashedge.engine.http_requests import PlainRequest, PlainRequests
from flashedge.errors import QueueFull
from flashedge.events import CertaintyUpdated, Progress
from flashedge.optimizations import Features
from flashedge.runtime.metrics import Metrics
from flashedge.runtime.plain_requests import watch_request
from flashedge.runtime.programs.scheduler import LOOK_S, PairScheduler, RunQueue, measure_capacity
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.scheduling.lengths.distribution import LogT
from flashedge.scheduling.programs.admission import Capacity
from flashedge.scheduling.programs.estimates import ProgramEstimate, RunEstimate
from flashedge.scheduling.programs.program import ANONYMOUS, Caller
from flashedge.types import NodeId
from tests.support.made_run import build_step
from tests.support.rollout_rig import LinearCurve
from tests.support.runtime_rig import BEAM, sim_engines


class Rig(PairScheduler):
    """A scheduler on virtual time, and the orders that the engines got. Each run of BEAM is 8 paths
    of the predicted length."""

    def __init__(self, **settings: Any) -> None:
        config = load_config({"scheduling_policy": "shortest", **settings}, environ={})
        self.sent: list[tuple[str, ...]] = []
        self.waits: list[tuple[str, float]] = []
        note = lambda kind, s: self.waits.append((kind, s))  # noqa: E731
        clock = asyncio.get_running_loop().time
        super().__init__("bundled", config, self._record, clock=clock, note_wait=note)

    async def _record(self, keys: Sequence[str]) -> None:
        self.sent.append(tuple(keys))

    def add(
        self, run_id: str, median: float | None = None, caller: Caller = ANONYMOUS, spec: Any = BEAM
    ) -> None:
        self.add_run(run_id, spec, tuple(range(10)), caller)
        if median is not None:
            self.set_length(run_id, median)

    def set_length(self, run_id: str, median: float) -> None:
        self.set_lengths(run_id, LogT(mu=log(median), sigma=0.05))

    def submit(self, run_id: str, median: float | None = None, caller: Caller = ANONYMOUS) -> None:
        self.add(run_id, median, caller)
        self.queue.reserve(run_id)
        if run_id in self.queue.running:
            self.note_start(run_id)

    def end(self, run_id: str) -> None:
        self.end_run(run_id)
        self.queue.leave(run_id)

    def step(self, run_id: str, tokens: int) -> None:
        self.note_event(run_id, build_step(1, "", tokens=tokens))

    async def draw(self, run_id: str, tokens_per_s: int, seconds: int) -> None:
        for _ in range(seconds):
            await asyncio.sleep(1)
            self.step(run_id, tokens_per_s)

    @property
    def only(self) -> ProgramEstimate:
        (found,) = self.estimate_programs()
        return found


Build = Callable[..., Rig]


@pytest_asyncio.fixture
async def build() -> AsyncIterator[Build]:
    rigs: list[Rig] = []

    def build_one(**settings: Any) -> Rig:
        rigs.append(Rig(**settings))
        return rigs[-1]

    yield build_one
    for rig in rigs:
        await rig.stop()


async def test_the_engines_get_the_order_whenever_it_changes(build: Build) -> None:
    rig = build()
    rig.add("a")
    rig.add("b")
    await asyncio.sleep(0.1)
    assert rig.sent == [("a", "b")]
    rig.set_length("b", 50)
    await asyncio.sleep(0.1)
    assert rig.sent[-1] == ("b", "a")
    for run in ("b", "b", "a"):
        rig.end_run(run)
    await asyncio.sleep(0.01)
    assert rig.sent[-1] == ()
    rig.add("c")
    await asyncio.sleep(0.1)
    assert rig.sent[-1] == ("c",), "right after the last one"
    rig.end_run("c")
    await asyncio.sleep(2 * LOOK_S)
    assert rig.sent[-1] == ()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left to send"


async def test_waiting_alone_changes_the_order(build: Build) -> None:
    rig = build(scheduling_escalate_s=30.0)
    rig.add("long", 1000)
    await asyncio.sleep(20)
    rig.add("short", 10)
    await asyncio.sleep(0.1)
    assert rig.sent[-1] == ("short", "long")
    await asyncio.sleep(15)
    assert rig.sent[-1] == ("long", "short"), "it has waited for more than 30 s"


async def test_arrival_order_leaves_the_engines_queues_alone(build: Build) -> None:
    rig = build(scheduling_policy="fcfs")
    rig.add("a", 50)
    rig.add("b")
    await asyncio.sleep(10)
    assert rig.sent == []
    assert rig.sort_waiting(["a", "b"]) == ["a", "b"]


async def test_tokens_shorten_what_is_left_and_certainty_only_with_early_exit(build: Build) -> None:
    rig = build()
    rig.add("a", 100)
    whole = rig.only.left_tokens
    assert whole == pytest.approx(BEAM.n * 100, rel=0.01)
    rig.step("a", 200)
    assert rig.only.left_tokens == pytest.approx(whole - 200, rel=0.01)
    rig.note_event("a", CertaintyUpdated(certainty=0.9, answers=1))
    assert rig.only.left_tokens == pytest.approx(whole - 200, rel=0.01)


async def test_runs_that_may_exit_early_need_room_for_a_group(build: Build) -> None:
    """Of 16 paths the first 5 are drawn, then the other 11."""
    rig = build()
    room = Capacity(kv_tokens=10_000, max_running=8, useful_sequences=32)
    rig.set_capacity(room)
    whole = replace(BEAM, strategy="self_consistency", n=16, options={})
    for number in range(4):
        spec = replace(whole, early_exit=ExitOptions(policy="static")) if number < 2 else whole
        rig.add(f"run-{number}", 10, spec=spec)
    assert rig.may_start("run-1", ["run-0"])
    assert not rig.may_start("run-2", ["run-0", "run-1"]), "11 and 11 leave 10"
    assert rig.may_start("run-3", ["run-2"])
    assert not rig.may_start("run-0", ["run-2", "run-3"])


async def test_without_admission_by_memory_max_running_decides(build: Build) -> None:
    rig = build(max_running=3, features=Features(admission=False))
    rig.set_capacity(Capacity(kv_tokens=1, max_running=3, useful_sequences=1))
    for name in "abcd":
        rig.submit(name)
    assert rig.queue.sizes == (1, 3)


async def test_the_shortest_waiting_run_starts_next(build: Build) -> None:
    rig = build(max_running=1)
    for name, median in (("a", 500), ("b", 400), ("c", 30)):
        rig.submit(name, median)
    assert (rig.queue.running, rig.queue.waiting) == (("a",), ["c", "b"])
    rig.queue.leave("a")
    assert (rig.queue.running, rig.queue.waiting) == (("c",), ["b"])


async def test_a_start_is_expected_once_a_rate_was_measured(build: Build) -> None:
    rig = build(max_running=1)
    for run_id, median in (("a", 100), ("b", 200), ("c", 300)):
        rig.submit(run_id, median)
    assert rig.estimate_runs()["b"] == RunEstimate(
        position=0, median_tokens=pytest.approx(200), tail_tokens=pytest.approx(217, rel=0.02)
    )
    await rig.draw("a", 20, 5)
    left_s = (BEAM.n * 100 - 100) / 20
    runs = rig.estimate_runs()
    starts_s = {run_id: run.starts_in_s for run_id, run in runs.items()}
    expected = {"a": None, "b": left_s, "c": left_s + BEAM.n * 200 / 20}
    assert starts_s == pytest.approx(expected, rel=0.1)
    assert runs["a"].median_tokens == pytest.approx(100, rel=0.01)
    places = [(program.key, program.place) for program in rig.estimate_programs()]
    assert places == [("a", None), ("b", 0), ("c", 1)]
    assert {s.key: s.starts_in_s for s in rig.estimate_programs()} == starts_s
    chat = rig.add_request(PlainRequest(program="chat", max_tokens=64))
    rig.note_tokens(chat, 1000)
    assert rig.estimate_runs()["b"].starts_in_s == starts_s["b"], "a chat's speed is no search's"


async def test_a_run_of_a_program_that_has_started_waits_too(build: Build) -> None:
    rig = build(max_running=1)
    job = Caller(program="job")
    rig.submit("a", 100, job)
    rig.submit("b", 100, job)
    await rig.draw("a", 20, 5)
    assert rig.find_key("b") == "job"
    run = rig.estimate_runs()["b"]
    assert (run.position, run.starts_in_s) == (0, pytest.approx((BEAM.n * 100 - 100) / 20, rel=0.1))
    assert (rig.only.place, rig.only.starts_in_s) == (None, None)


async def test_runs_of_one_program_are_admitted_like_those_of_several(build: Build) -> None:
    """Each needs room for its own 8 paths, and leaves it when it ends."""
    rig = build(max_running=32)
    rig.set_capacity(Capacity(kv_tokens=1 << 20, max_running=32, useful_sequences=64))
    job = Caller(program="job")
    for number in range(9):
        rig.submit(f"job-{number}", 100, job)
    assert len(rig.queue.running) == 8
    for number in range(8):
        rig.end(f"job-{number}")
    assert rig.only.left_tokens == pytest.approx(800, rel=0.01)
    for number in range(7):
        rig.submit(f"other-{number}", 100)
    assert rig.queue.waiting == []


async def test_a_certain_run_says_nothing_of_the_others_of_its_program(build: Build) -> None:
    rig = build()
    spec = replace(BEAM, strategy="self_consistency", early_exit=ExitOptions())
    for run_id in ("sure", "new"):
        rig.add(run_id, 100, Caller(program="job"), spec)
    before = rig.only.left_tokens
    rig.note_event("sure", CertaintyUpdated(certainty=1.0, answers=1, progress=1, answer="4"))
    assert rig.only.left_tokens == pytest.approx(before / 2, rel=0.03)
    rig.end_run("sure")
    assert rig.only.left_tokens == pytest.approx(before / 2, rel=0.05)


async def test_a_search_that_draws_a_long_step_does_not_wait(build: Build) -> None:
    rig = build(scheduling_escalate_s=30.0)
    rig.add("batch", caller=Caller(priority=1))
    rig.note_start("batch")
    for _ in range(40):
        await asyncio.sleep(1)
        rig.note_event("batch", Progress(tokens=((NodeId(1), 5),)))
    rig.add_request(PlainRequest(program="chat", max_tokens=64))
    assert rig.sort_waiting(["batch", "chat"]) == ["chat", "batch"]


async def test_the_wait_of_each_program_is_noted_once(build: Build) -> None:
    rig = build(scheduling_policy="fcfs")
    rig.add("run", caller=Caller(priority=1))
    rig.add_request(PlainRequest(program="chat", max_tokens=64))
    await asyncio.sleep(3)
    rig.mark_started("chat")
    rig.mark_started("chat")
    await asyncio.sleep(4)
    rig.note_start("run")
    assert rig.waits == [("chat", 3.0), ("batch", 7.0)]


async def test_a_plain_request_is_a_program_while_it_is_open(build: Build) -> None:
    rig = build()
    plain = PlainRequests(partial(watch_request, Metrics(), lambda pair: rig))
    prompt = tuple(range(7))
    ask = PlainRequest(program="chat", client="person", choices=2, prompt_ids=prompt, max_tokens=64)

    async def abort() -> None: ...

    with plain.open(ask, abort) as follow:
        before = rig.only
        assert (before.kind, before.has_started) == ("chat", False)
        follow(7, 3, ())
        assert rig.only.has_started
        assert rig.only.left_tokens < before.left_tokens
    assert rig.estimate_programs() == []


@pytest.mark.parametrize("is_shared", [False, True])
async def test_the_room_of_two_engines(is_shared: bool) -> None:
    engines, curve = sim_engines(), LinearCurve(sequence_s=0.001)
    pair = engines.generator, engines.verifier
    limits = {"max_running": 8, "max_sequences": 64, "is_shared": is_shared}
    found = await measure_capacity(*pair, curve, **limits)
    assert found.step_s(10) == pytest.approx(0.02)
    assert found.useful_sequences > 1
    each = [view.quota_blocks * view.block_tokens for view in [await e.view() for e in pair]]
    assert min(each) <= found.kv_tokens <= (max(each) if is_shared else min(each))


# ---------------------------------------------------------------- the queue


class Turns(RunQueue):
    """Whoever came first starts first. It knows who began, and holds them until they may end."""

    def __init__(self, most: int, limit: int) -> None:
        super().__init__(lambda waiting: waiting, lambda _, running: len(running) < most, limit)
        self.began: list[str] = []
        self.may_end = asyncio.Event()

    async def hold(self, name: str) -> None:
        async with self.wait_turn(name):
            self.began.append(name)
            await self.may_end.wait()


@pytest.mark.parametrize("limit", [2, 0])
async def test_a_full_queue_refuses(limit: int) -> None:
    """Where none may wait, a run still starts if there is room."""
    queue = Turns(1, limit)
    names = "abc"[: limit + 1]
    for name in names:
        queue.reserve(name)
    with pytest.raises(QueueFull, match=f"1 runs are running and {limit} are waiting") as e:
        queue.reserve("d")
    assert e.value.retry_after_s > 0
    assert queue.sizes == (limit, 1)
    queue.leave(names[-1])
    queue.reserve("d")
    assert [*queue.running, *queue.waiting] == [*names[:-1], "d"]


async def test_turns_come_in_the_order_of_reserve() -> None:
    queue = Turns(1, 9)
    for name in "abc":
        queue.reserve(name)
    async with asyncio.TaskGroup() as group:
        for name in "cba":  # whoever asks first
            group.create_task(queue.hold(name))
        await asyncio.sleep(1)
        assert queue.began == ["a"]
        queue.may_end.set()
    assert (queue.began, queue.sizes) == (["a", "b", "c"], (0, 0))


async def test_an_error_admits_the_next_run() -> None:
    queue = Turns(1, 1)
    queue.reserve("a")
    with pytest.raises(ZeroDivisionError):
        async with queue.wait_turn("a"):
            raise ZeroDivisionError
    assert queue.sizes == (0, 0)


async def test_a_run_is_cancelled_in_the_tick_of_its_admission() -> None:
    """b's turn has come, but it never gets to know: its ticket goes on to c."""
    queue = Turns(1, 9)
    queue.may_end.set()
    for name in "abc":
        queue.reserve(name)
    b, c = (asyncio.create_task(queue.hold(name)) for name in "bc")
    await asyncio.sleep(1)
    queue.leave("a")
    assert (queue.running, queue.waiting) == (("b",), ["c"])
    b.cancel()
    await c
    assert b.cancelled()
    assert (queue.began, queue.sizes) == (["c"], (0, 0))


@pytest.mark.parametrize("seed", range(5))
async def test_any_mixture_of_ends_and_cancels_admits_all(seed: int) -> None:
    draw, queue, began, at_once = random.Random(seed), Turns(3, 100), list[int](), 0

    async def one(number: int) -> None:
        nonlocal at_once
        async with queue.wait_turn(str(number)):
            began.append(number)
            at_once += 1
            assert at_once <= 3
            try:
                await asyncio.sleep(draw.random())
            finally:
                at_once -= 1

    tasks = []
    for number in range(60):
        queue.reserve(str(number))
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(draw.random() * 0.2)
        if draw.random() < 0.5 and (task := draw.choice(tasks)) is not tasks[-1]:
            task.cancel()  # not a task without a step yet: it never enters its turn
    await asyncio.wait(tasks)
    assert began == sorted(began)
    assert len(began) >= 30
    assert (queue.sizes, at_once) == ((0, 0), 0)
