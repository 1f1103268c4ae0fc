"""The board of the daemon: who is told what, and when the engines close the gate."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from flashedge.engine.base import EngineView
from flashedge.errors import EngineDead
from flashedge.events import Event, NodeScored, NodesExpanded, NodesMarked, RolloutsEnded
from flashedge.runtime.request.validation import Request
from flashedge.runtime.rollouts import boosting
from flashedge.runtime.rollouts.boosting import OTHERS_POLLS, POLL_S, Boosting, DaemonTime
from flashedge.runtime.run_state import RunState
from flashedge.scheduling.rollouts.allocation import BoostState
from flashedge.scheduling.rollouts.limiter import RolloutCost
from flashedge.types import NodeId
from tests.support import fake_service
from tests.support.boost_rig import SPEC
from tests.support.made_run import build_step
from tests.support.rollout_rig import make_cost

ROOM = dict.fromkeys(("blocks_total", "quota_blocks"), 10_000)
IDLE = replace(fake_service.VIEW, running=4, blocks_used=10, block_tokens=16, **ROOM)


@dataclass
class Engines:
    name: str = "bundled"
    rollout_cost: RolloutCost | None = field(default_factory=lambda: make_cost(0.0))
    max_sequences: int = 256
    view: EngineView = IDLE
    is_dead: bool = False
    answers_in_s: float = 0.0
    asked: int = 0

    async def views(self) -> Mapping[str, EngineView]:
        self.asked += 1
        await asyncio.sleep(self.answers_in_s)
        if self.is_dead:
            raise EngineDead("the engine is gone")
        return {"generator": self.view, "verifier": self.view}


class Rig:
    def __init__(self) -> None:
        self.engines = Engines()
        self.runs: dict[str, RunState] = {}
        self.told: dict[str, list[int]] = {}
        self.order: list[tuple[str, int]] = []
        loop = asyncio.get_running_loop()
        self.cpu_s, self.tokens = 0.0, 0
        daemon = DaemonTime(lambda: self.tokens, lambda: self.cpu_s)
        self.boosting = Boosting(clock=loop.time, daemon=daemon)

    @property
    def state(self) -> BoostState:
        """Of the only pair."""
        (found,) = self.boosting.list_states()
        return found

    def join(self, key: str, spec: Request | None = None, n: int = 12) -> Any:
        told = self.told.setdefault(key, [])

        def allow(rollouts: int, of: int) -> None:
            told.append(rollouts)
            self.order.append((key, rollouts))

        now_s = asyncio.get_running_loop().time()
        self.runs[key] = RunState(key, spec or build_spec(n), prompt_tokens=20, arrived_s=now_s)
        return self.boosting.join(self.runs[key], self.engines, allow)

    @contextmanager
    def begun(self, key: str, n: int = 12) -> Iterator[None]:
        """A run of which one rollout has ended."""
        with self.join(key, n=n):
            self.end_rollout(key)
            yield

    def see(self, key: str, event: Event) -> None:
        self.runs[key].observe(event, 0.0)
        self.boosting.note_event(self.runs[key])

    def end_rollout(self, key: str, score: float = 0.5) -> None:
        self.see(key, NodeScored(node=NodeId(1), scores=(score,), score=score))
        self.see(key, RolloutsEnded(nodes=(NodeId(1),)))


@pytest_asyncio.fixture
async def boost() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.boosting.stop()


def build_spec(n: int, **options: Any) -> Request:
    exits = {"boost": True, "positive_exit": True, "accept": 0.9}
    return replace(SPEC, n=n, branching=4, options={**exits, **options})


async def test_a_run_is_boosted_once_a_rollout_has_ended(boost: Rig) -> None:
    with boost.join("a"):
        await asyncio.sleep(1.0)
        assert boost.told["a"] == [1]
        boost.end_rollout("a")
        for _ in range(2):
            await asyncio.sleep(0)
        assert boost.told["a"] == [1, 8]
        assert (boost.state.budget, boost.state.runs) == (8, {"a": 8})
    assert boost.boosting.list_states() == ()


async def test_engines_are_polled_at_regular_times_however_often_rollouts_end(boost: Rig) -> None:
    with boost.begun("a", n=400):
        await asyncio.sleep(0.1 * POLL_S)
        asked = boost.engines.asked
        for _ in range(20):
            boost.end_rollout("a")
            await asyncio.sleep(0.1 * POLL_S)
        assert 1 <= boost.engines.asked - asked <= 3
        boost.engines.view = replace(IDLE, waiting=3, running=256)
        for _ in range(20):
            await asyncio.sleep(0.4 * POLL_S)
            boost.end_rollout("a")
        assert boost.state.reason == "requests wait in an engine"


@pytest.mark.parametrize(
    ("running", "used", "closes"), [(256, 10, True), (40, 9_500, True), (40, 10, False)]
)
async def test_a_request_waits_where_it_finds_no_room_at_two_looks(
    boost: Rig, running: int, used: int, closes: bool
) -> None:
    with boost.begun("a"):
        await asyncio.sleep(1.1 * POLL_S)
        boost.engines.view = replace(IDLE, waiting=3, running=running, blocks_used=used)
        await asyncio.sleep(2 * POLL_S)
        assert (boost.state.reason == "requests wait in an engine") is closes
        assert (boost.told["a"][-1] == 1) is closes
        boost.engines.view = IDLE
        await asyncio.sleep(POLL_S)
        assert boost.told["a"][-1] == 8


async def test_what_an_engine_is_just_aborting_counts_for_nobody(boost: Rig) -> None:
    """It still runs at one look, and at the next it is gone. A chat is there at all of them."""
    boost.engines.rollout_cost = make_cost(1e-3)
    boost.engines.view = replace(IDLE, running=0)
    with boost.begun("a"):
        await asyncio.sleep(1.1 * POLL_S)
        boosted = boost.told["a"][-1]
        assert boosted > 1
        boost.engines.view = replace(IDLE, running=20)
        await asyncio.sleep((OTHERS_POLLS - 1) * POLL_S)
        assert boost.told["a"][-1] == boosted
        await asyncio.sleep(POLL_S)
        assert boost.told["a"][-1] < boosted


async def test_a_newcomer_takes_from_those_that_are_boosted_first(boost: Rig) -> None:
    boost.engines.view = replace(IDLE, running=0)
    boost.engines.max_sequences = 16
    with boost.begun("a"):
        await asyncio.sleep(1.0)
        assert boost.told["a"][-1] > 1
        boost.order.clear()
        with boost.join("b"):
            assert boost.order[0][0] == "a"
            assert boost.order[-1] == ("b", 1)


@pytest.mark.parametrize(
    "fault", [{"is_dead": True}, {"rollout_cost": None}, {"view": replace(IDLE, blocks_used=9_500)}]
)
async def test_what_is_not_known_or_full_keeps_it_closed(boost: Rig, fault: dict[str, Any]) -> None:
    boost.engines = replace(boost.engines, **fault)
    with boost.begun("a"):
        await asyncio.sleep(2.0)
        assert set(boost.told["a"]) == {1}


async def test_the_open_time_is_counted(boost: Rig) -> None:
    with boost.join("a"):
        await asyncio.sleep(10.0)
        boost.end_rollout("a")
        await asyncio.sleep(30.0)
    assert boost.boosting.running_s == pytest.approx(40.0, abs=POLL_S)
    assert boost.boosting.open_s == pytest.approx(30.0, abs=POLL_S)
    await asyncio.sleep(60.0)
    with boost.join("b"):
        await asyncio.sleep(10.0)
    assert boost.boosting.running_s == pytest.approx(50.0, abs=2 * POLL_S)


async def test_time_between_runs_does_not_count_though_a_look_outlives_its_run(boost: Rig) -> None:
    boost.engines.answers_in_s = 0.05
    with boost.join("a"):
        await asyncio.sleep(0.02)
    await asyncio.sleep(3_600.0)
    with boost.join("b"):
        await asyncio.sleep(1.0)
    assert boost.boosting.running_s == pytest.approx(1.02)


def test_a_ledger_follows_rewards_paths_and_levels() -> None:
    spec = replace(build_spec(4, accept=0.8), branching=2)
    run = RunState("a", spec, prompt_tokens=10).rollouts
    one, two, three = NodeId(1), NodeId(2), NodeId(3)

    run.observe(NodesExpanded(parent=NodeId(0), depth=1, children=((one, 0, 5), (two, 1, 6))))
    assert run.open_sequences == 2
    run.observe(build_step(1, "", tokens=7))
    run.observe(build_step(2, "", tokens=12))
    assert run.open_sequences == 0
    assert (run.level_tokens, run.levels) == (12, 1)
    run.observe(NodesExpanded(parent=two, depth=2, children=((three, 0, 7),)))
    run.observe(NodesMarked(status="cancelled", nodes=(three,)))
    assert run.open_sequences == 0
    assert (run.level_tokens, run.levels) == (12, 1)
    run.observe(NodeScored(node=two, scores=(0.6,), score=0.6))
    assert not run.has_changed
    run.observe(RolloutsEnded(nodes=(two,)))
    assert run.has_changed
    found = run.candidate
    assert (found.observed, found.most, found.path_tokens) == (1, 3, 22)
    assert found.nearness == pytest.approx(0.75)
    run.observe(RolloutsEnded(nodes=(), futile=2))
    assert (run.candidate.observed, run.candidate.most) == (1, 1)


async def test_a_daemon_that_is_busy_with_each_token_closes_the_gate(boost: Rig) -> None:
    """A step takes 10 ms. The daemon has no processor of its own and takes 10 ms for a token, so
    eight rollouts take as long as eight times one."""
    boost.engines.view = replace(IDLE, running=0)
    boost.engines.rollout_cost = replace(make_cost(0.0), shares_daemon=True)
    with boost.begun("a", n=400):
        await asyncio.sleep(1.1 * POLL_S)
        assert boost.told["a"][-1] == 8
        for _ in range(4):
            boost.tokens += 200
            boost.cpu_s += 200 * 0.01
            await asyncio.sleep(POLL_S)
        assert (boost.told["a"][-1], boost.state.reason) == (1, "more would gain too little")


async def test_engines_are_not_asked_where_more_rollouts_would_gain_nothing(boost: Rig) -> None:
    boost.engines.rollout_cost = make_cost(1.0)
    with boost.begun("a", n=400):
        await asyncio.sleep(10 * POLL_S)
        assert boost.engines.asked == 0
        assert (boost.state.budget, boost.state.reason) == (1, "more would gain too little")
        boost.engines.rollout_cost = make_cost(0.0)
        await asyncio.sleep(POLL_S)
        assert (boost.engines.asked, boost.told["a"]) == (1, [1, 8])


async def test_chats_that_were_there_count_at_the_first_opening(boost: Rig) -> None:
    """Beside 30 sequences of others the margin lets three rollouts through."""
    boost.engines.view = replace(IDLE, running=30)
    boost.engines.rollout_cost = make_cost(4e-4)
    with boost.join("a", n=400):
        await asyncio.sleep(10 * POLL_S)
        boost.end_rollout("a")
        await asyncio.sleep(3 * POLL_S)
        assert boost.told["a"] == [1, 3]


async def test_a_pair_whose_last_run_ends_while_another_is_asked_is_harmless(boost: Rig) -> None:
    boost.engines.answers_in_s = 0.1
    slow = boost.engines
    with boost.begun("a", n=400):
        boost.engines = Engines(name="other")
        with boost.begun("b", n=400):
            await asyncio.sleep(POLL_S + 0.05)
        await asyncio.sleep(POLL_S)
        slow.view = replace(IDLE, waiting=1, running=256)
        await asyncio.sleep(5 * POLL_S)
        assert boost.told["a"][-1] == 1


async def test_a_run_that_joins_while_engines_are_asked_takes_what_there_is(boost: Rig) -> None:
    with boost.begun("a", n=400):
        await asyncio.sleep(1.1 * POLL_S)
        boost.engines.answers_in_s = 100.0
        await asyncio.sleep(5 * POLL_S)
        with boost.join("b", n=400):
            assert boost.state.reason == "the engines are being asked"
            assert sum(boost.state.runs.values()) == 8
            assert boost.state.runs["b"] == 1


# ---------------------------------------------------------------- the daemon's own time


@dataclass
class Daemon:
    cpu_s: float = 7.0
    tokens: int = 300

    def __post_init__(self) -> None:
        self.time = DaemonTime(lambda: self.tokens, lambda: self.cpu_s)

        self.time.look()

    def work(self, tokens: int, spent_s: float) -> None:
        self.tokens += tokens
        self.cpu_s += spent_s

    def measure(self, tokens: int, spent_s: float) -> float:
        self.work(tokens, spent_s)
        self.time.look()
        return self.time.token_s


def test_it_is_unknown_until_enough_tokens_are_drawn() -> None:
    machine = Daemon()
    assert machine.measure(boosting.MIN_SAMPLE_TOKENS - 1, 1.0) == 0.0
    assert machine.measure(1, 0.0) == pytest.approx(1.0 / boosting.MIN_SAMPLE_TOKENS)


def test_a_pause_counts_what_came_before_it_and_nothing_after_it() -> None:
    machine = Daemon()
    for _ in range(10):
        machine.time.look()
        machine.work(100, 0.1)
        machine.time.pause()
        machine.work(7, 50.0)
    assert machine.time.token_s == pytest.approx(1e-3)


def test_what_was_long_ago_is_outweighed() -> None:
    """A daemon that took 1 ms for a token takes 2 ms now."""
    machine = Daemon()
    for token_s in (1e-3, *[2e-3] * 5):
        found_s = machine.measure(boosting.MAX_SAMPLE_TOKENS, boosting.MAX_SAMPLE_TOKENS * token_s)
    assert found_s == pytest.approx(2e-3, rel=0.05)
