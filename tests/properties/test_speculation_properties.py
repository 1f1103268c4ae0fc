"""Speculation and lookahead never change a run's tree, whatever happens beside it. The draft board
keeps correct books, and never runs more drafts than there are slots."""

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flashedge.errors import EngineError
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.draft_choice import BatchView, count_places, limit_drafts
from flashedge.scheduling.speculation.drafts import Beam, Continuation, Draft, DraftState
from flashedge.types import FinishReason, Granularity, Sampling
from scripts.lab.sim.clock import run_virtual
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import assert_nothing_left, both
from tests.support.speculation_rig import AMPLE, drive_run, engines_with, spec_for

# ---------------------------------------------------------------- the same tree


SPECS = st.builds(
    spec_for,
    problem=st.integers(0, 11),
    strategy=st.sampled_from(["beam", "dvts", "rebase", "dynamic_branching"]),
    n=st.sampled_from([1, 2, 4, 7, 16]),
    branching=st.integers(1, 5),
    aggregate=st.sampled_from(["last", "min", "prod", "mean"]),
    max_step_tokens=st.sampled_from([4, 20, 256]),
    max_steps=st.sampled_from([2, 4, 40]),
    max_path_tokens=st.sampled_from([30, 240]),
    token_budget=st.sampled_from([None, None, 300]),
)
CONFIGS = st.builds(
    replace,
    st.just(AMPLE),
    block_tokens=st.sampled_from([4, 16]),
    kv_bytes=st.sampled_from([272, 700, 8192]).map(lambda t: t * AMPLE.shape.kv_bytes_per_token),
    max_model_len=st.just(256),
    max_num_seqs=st.sampled_from([3, 16, 256]),
    max_batched_tokens=st.sampled_from([24, 2048]),
    stream_interval=st.sampled_from([1, 5]),
)
ENGINE = st.integers(0, 1)
MISHAPS = st.one_of(
    st.tuples(st.just("budget"), ENGINE, st.floats(0, 1)),
    st.tuples(st.just("kill"), ENGINE, st.none()),
    st.tuples(st.just("another run"), st.integers(0, 11), st.sampled_from([0.001, 0.01, 0.1])),
)
FAULTS = st.builds(
    Faults,
    die_after_steps=st.frozensets(st.integers(1, 80), max_size=2),
    restart_s=st.just(0.3),
    fail_requests=st.frozensets(st.integers(0, 30), max_size=3),
)
MOMENTS = st.lists(st.tuples(st.sampled_from([0.003, 0.02, 0.08]), MISHAPS), max_size=6)


async def try_run(engines: Engines, spec: Request) -> Outcome | None:
    """None when there were more faults than retries, so that the run failed as it should."""
    try:
        return (await drive_run(engines, spec)).outcome
    except EngineError:
        return None


async def apply_mishap(engines: Engines, what: Any, group: asyncio.TaskGroup) -> None:
    match what:
        case "budget", engine, share:
            target = both(engines)[engine]
            await target.budget(round(share * target.config.kv_bytes))
        case "kill", engine, _:
            both(engines)[engine].kill("killed by the test")
        case _, problem, after_s:
            other = group.create_task(try_run(engines, spec_for(problem, max_path_tokens=240)))
            await asyncio.sleep(after_s)
            other.cancel()


@given(
    spec=SPECS,
    config=CONFIGS,
    faults=FAULTS,
    moments=MOMENTS,
    switches=st.sampled_from([{"lookahead": True}, {"early_scores": True}, {}]),
)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
def test_the_same_tree_whatever_happens(
    spec: Request,
    config: Any,
    faults: Faults,
    moments: list[tuple[float, Any]],
    switches: dict[str, bool],
) -> None:
    async def on() -> Outcome | None:
        engines = engines_with(config, faults=faults, lookahead=False).switch(**switches)
        async with asyncio.TaskGroup() as group:
            run = group.create_task(try_run(engines, spec))
            for pause_s, what in moments:
                await asyncio.sleep(pause_s)
                await apply_mishap(engines, what, group)
            outcome = await run
        await assert_nothing_left(engines)
        return outcome

    expected = run_virtual(drive_run(engines_with(speculation=False), spec)).outcome
    assert run_virtual(on()) in (None, expected)


# ---------------------------------------------------------------- the board


SAMPLING = Sampling()


class BoardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.board = DraftBoard()
        self.level = {"a": 1, "b": 1}
        self.beams: list[Beam] = []
        self.count = 0
        self.drawn = {"a": 0, "b": 0}
        self.certain = {"a": 0, "b": 0}

    @rule(run=st.sampled_from("ab"), max_drafts=st.integers(0, 4))
    def begin(self, run: str, max_drafts: int) -> None:
        self.count += 1
        continuation = Continuation(
            run=run,
            level=self.level[run],
            seeds=tuple(range(10 * self.count, 10 * self.count + 4)),
            granularity=Granularity(max_tokens=4),
            max_drafts=max_drafts,
        )
        self.beams.append(self.board.add_beam(continuation, (), -1, SAMPLING)[0])

    def one(self, data: st.DataObject, found: list[Any]) -> Any:
        return data.draw(st.sampled_from(found)) if found else None

    @property
    def generating(self) -> list[Beam]:
        return [beam for beam in self.beams if not beam.path]

    @rule(data=st.data(), reason=st.sampled_from(FinishReason))
    def finish(self, data: st.DataObject, reason: FinishReason) -> None:
        if beam := self.one(data, self.generating):
            self.board.finish_beam(beam, (self.beams.index(beam),), ends_path=reason.ends_path)
            assert (not beam.drafts) or not reason.ends_path

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if beam := self.one(data, self.generating):
            self.board.cancel_beam(beam)
            self.beams.remove(beam)

    @rule(
        waiting=st.integers(0, 1),
        most=st.integers(0, 12),
        spare=st.integers(0, 30),
        sequence_s=st.sampled_from([0.0, 0.01, 1.0]),
    )
    def plan(self, waiting: int, most: int, spare: int, sequence_s: float) -> None:
        standard = len(self.generating)
        view = BatchView(
            running=standard,
            waiting=waiting,
            max_running=standard + most,
            spare_blocks=spare,
            base_s=1.0,
            sequence_s=sequence_s,
        )
        before = self.board.running
        plan = self.board.plan(view)
        assert set(plan.pause) <= set(before)
        assert set(self.board.running) == (set(before) - set(plan.pause)) | set(plan.run)
        assert len(self.board.running) <= count_places(view, len(before)) <= most
        waited_for = {(b.continuation.run, b.continuation.level) for b in self.generating}
        for draft in self.board.running:
            assert draft.is_certain or draft.continuation.key in waited_for
            assert draft.is_certain or draft.child < draft.continuation.max_drafts
        if waiting:
            assert not self.board.running

    @precondition(lambda self: self.board.running)
    @rule(data=st.data(), complete=st.booleans())
    def draw(self, data: st.DataObject, complete: bool) -> None:
        draft = self.one(data, list(self.board.running))
        self.board.append(draft, 1, -0.5, FinishReason.BOUNDARY if complete else None)
        self.drawn[draft.continuation.run] += 1
        self.certain[draft.continuation.run] += draft.is_certain

    @rule(run=st.sampled_from("ab"), data=st.data(), count=st.integers(1, 5))
    def commit(self, run: str, data: st.DataObject, count: int) -> None:
        """Whatever the search says, also of beams that are not finished or have no children."""
        if beam := self.one(data, [b for b in self.beams if b.continuation.run == run]):
            level = beam.continuation.level
            self.board.commit(run, level, {beam.continuation.seeds[0]: count})
            assert all(d.is_certain == (d.child < beam.num_certain) for d in beam.drafts)

    @rule(run=st.sampled_from("ab"), data=st.data())
    def next_level(self, run: str, data: st.DataObject) -> None:
        if any(beam.continuation.run == run for beam in self.generating):
            return
        drafts = self.list_open(run)
        current = [d for d in drafts if d.continuation.level == self.level[run]]
        kept = [d for d in current if data.draw(st.booleans())]
        self.level[run] += 1
        seeds = {d.seed for d in kept}
        dropped = self.board.drop_unused(run, [self.level[run] - 1], seeds)
        assert set(dropped) == set(drafts) - set(kept)
        for draft in kept:
            requested = replace(draft.continuation, level=self.level[run])
            beam, found = self.board.add_beam(requested, draft.path, draft.seed, SAMPLING)
            assert found is draft
            self.board.cancel_beam(beam)
        assert self.list_open(run) == []

    @rule(run=st.sampled_from("ab"))
    def end(self, run: str) -> None:
        open_drafts = self.list_open(run)
        assert self.board.count_drawn(run) == (self.drawn[run], self.certain[run])
        assert set(self.board.end_run(run)) == set(open_drafts)
        self.beams = [b for b in self.beams if b.continuation.run != run]
        self.drawn[run] = self.certain[run] = 0

    def list_open(self, run: str) -> list[Draft]:
        drafts = [d for b in self.beams if b.continuation.run == run for d in b.drafts]
        return [draft for draft in drafts if draft.is_open]

    @invariant()
    def states_agree_with_the_books(self) -> None:
        running = {d for run in "ab" for d in self.list_open(run) if d.state is DraftState.RUNNING}
        assert running == set(self.board.running)
        complete = {d for run in "ab" for d in self.board.list_complete(run)}
        assert complete == {d for run in "ab" for d in self.list_open(run) if d.finish is not None}


TestBoard = BoardMachine.TestCase
TestBoard.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(scores=st.lists(st.none() | st.floats(0, 1), max_size=20), branching=st.integers(1, 8))
def test_better_scores_never_have_fewer_drafts(scores: list[float | None], branching: int) -> None:
    found = list(zip(scores, limit_drafts(scores, branching), strict=True))
    assert all(1 <= limit <= branching for _, limit in found)
    known = sorted((s, p) for s, p in found if s is not None)
    assert [p for _, p in known] == sorted(p for _, p in known)
    if known:
        assert known[-1][1] == branching
