"""Speculation's pure core: score bins, slots, and the life cycle of drafts."""

from dataclasses import replace

import pytest

from flashedge.scheduling.speculation import draft_choice
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.draft_choice import BatchView, count_slots, find_flat_batch
from flashedge.scheduling.speculation.drafts import Continuation, Draft, DraftState
from flashedge.types import FinishReason, Granularity, Sampling

SAMPLING = Sampling()
STEP = Granularity(max_tokens=8)
PATH = (7, 7)


def view(running: int, *, waiting: int = 0, most: int = 64, spare: int = 1000) -> BatchView:
    return BatchView(running=running, waiting=waiting, max_running=most, spare_blocks=spare)


def continuation(beam: int, *, max_drafts: int = 4, level: int = 1, run: str = "a") -> Continuation:
    seeds = tuple(100 * beam + child for child in range(4))
    return Continuation(run=run, level=level, seeds=seeds, granularity=STEP, max_drafts=max_drafts)


class Level:
    """Beams, each with its most drafts. The first `finished` of them have ended."""

    def __init__(self, *max_drafts: int, finished: int = 0) -> None:
        self.board = DraftBoard()
        steps = [continuation(i, max_drafts=m) for i, m in enumerate(max_drafts)]
        self.beams = [self.board.add_beam(step, SAMPLING) for step in steps]
        for beam in range(finished):
            self.finish(beam)

    def finish(self, beam: int, reason: FinishReason = FinishReason.BOUNDARY) -> Draft | None:
        return self.board.finish_beam(self.beams[beam], (*PATH, beam), ends_path=reason.ends_path)

    def plan(self, running: int = 1, **fields: int) -> tuple[Draft, ...]:
        """The drafts that start while so many beams generate."""
        return self.board.plan(view(running, **fields)).run

    def start(self) -> list[tuple[int, int]]:
        """Plan as if all generating beams were in the batch: (beam, child) of each new draft."""
        run = self.plan(sum(beam.path is None for beam in self.beams))
        return [(draft.path[-1], draft.child) for draft in run]

    def draw(self, draft: Draft, token: int = 5, finish: FinishReason | None = None) -> None:
        self.board.append(draft, token, -0.1, finish)


def adopt(level: Level, child: int) -> Draft | None:
    """Ask for this child of the first beam."""
    seed = level.beams[0].continuation.seeds[child]
    return level.board.adopt(continuation(0, level=2), (*PATH, 0), seed, SAMPLING)


def test_more_drafts_in_higher_bins() -> None:
    """M_i = B - j + 1, C_1 the highest of B equal bins. Equal scores limit nothing."""
    limit = draft_choice.limit_drafts
    assert limit([1.0, 0.8, 0.6, 0.4, 0.2, 0.0], 4) == (4, 4, 3, 2, 1, 1)
    assert (limit([0.9, 0.1], 2), limit([0.3, 0.9], 1)) == ((2, 1), (1, 1))
    assert limit([None, None], 4) == limit([0.5, 0.5], 4) == (4, 4)
    assert limit([0.2, None, 0.8], 4) == (1, 4, 4)
    assert (limit([], 4), limit([0.3], 0)) == ((), (0,))


WIDE = replace(view(5), flat_batch=32)
MANY = {"beams": 16, "max_drafts": 64}
"""At least three in four of these drafts need a slot."""


@pytest.mark.parametrize(
    ("batch", "finished", "drafting", "slots"),
    [
        pytest.param(view(5), 3, 0, 3, id="the batch stays as large as it was"),
        (view(5, most=6), 3, 0, 1),
        (view(6, most=6), 3, 0, 0),
        pytest.param(WIDE, 3, 0, 27, id="the flat batch bounds it"),
        pytest.param(WIDE, 0, 0, 0, id="nobody has finished"),
        pytest.param(replace(WIDE, flat_batch=6), 3, 0, 1, id="fewer than the beams left"),
        (replace(WIDE, flat_batch=4), 3, 0, 0),
        (replace(WIDE, max_running=9), 3, 0, 4),
        (replace(WIDE, waiting=1), 3, 9, 0),
        pytest.param(view(40), 24, 0, 0, id="no step was measured: only the end of a large level"),
        (view(14), 50, 0, 2),
        (replace(view(14), unmeasured_batch=4), 50, 2, 0),
        (replace(view(14), flat_batch=64), 50, 0, 50),
        pytest.param(view(5, waiting=1), 3, 3, 0, id="requests wait"),
        pytest.param(view(5, spare=7), 3, 3, 0, id="memory is short"),
        (view(5, spare=8), 3, 3, 3),
        pytest.param(view(5, spare=8), 3, 1, 2, id="a new draft needs two blocks"),
    ],
)
def test_slots(batch: BatchView, finished: int, drafting: int, slots: int) -> None:
    assert count_slots(batch, finished, drafting) == slots


def test_no_speculation_where_too_many_steps_start_cold() -> None:
    wide = replace(view(16), flat_batch=64)
    assert count_slots(wide, 3, 0, **MANY) == 48
    assert count_slots(replace(wide, running=17), 3, 0, **MANY) == 0
    assert count_slots(replace(view(3), flat_batch=4), 1, 0, beams=4, max_drafts=16) == 1
    assert count_slots(view(8), 3, 0, **MANY) == 3, "the flat batch is not known"


def test_the_flat_batch_is_the_largest_within_the_tolerance() -> None:
    def step_s(batch: int) -> float:
        return 5.0 + max(0, batch - 10) * 0.1

    largest = max(b for b in range(1, 257) if step_s(b) <= 6.25)
    assert [find_flat_batch(step_s, most) for most in (256, 4)] == [largest, 4]
    assert find_flat_batch(lambda batch: float(batch), 256) == 1


def test_the_best_bin_goes_first_and_displaces_no_running_draft() -> None:
    """The paper's public artifact gives all drafts the same priority."""
    level = Level(1, 4, 2, 4, 4, finished=4)
    assert level.start() == [(1, 0), (3, 0), (1, 1), (3, 1)]
    level = Level(1, 4, 4, finished=1)
    assert level.start() == [(0, 0)]
    level.finish(1)
    assert level.start() == [(1, 0)]


def commit(level: Level, **children: int) -> None:
    """children: their numbers by beam, as in b0=2."""
    seeds = {level.beams[int(b[1:])].continuation.seeds[0]: n for b, n in children.items()}
    level.board.commit("a", 1, seeds)


def test_certain_children_go_first_and_beyond_what_guesses_may() -> None:
    """Two slots are free. The second beam has three certain children, and one may be guessed."""
    level = Level(4, 1, 4, finished=2)
    guesses = level.plan()
    assert [(d.path[-1], d.child) for d in guesses] == [(0, 0), (0, 1)]
    commit(level, b1=3)
    plan = level.board.plan(view(1))
    assert plan.pause == guesses
    assert [(d.path[-1], d.child, d.is_certain) for d in plan.run] == [
        (1, child, True) for child in range(3)
    ]
    level.draw(plan.run[0])
    assert level.board.count_drawn("a") == (1, 1)
    assert level.plan(most=3) == (), "two certain drafts stay"
    assert len(level.board.running) == 2
    level.draw(level.board.running[0], finish=FinishReason.BOUNDARY)
    assert [d.is_certain for d in level.plan()] == [True]


def test_certain_children_are_subject_to_memory_and_to_requests_that_wait() -> None:
    level = Level(4, 4, finished=1)
    commit(level, b0=4)
    assert len(level.plan(spare=7)) == 3, "a new draft needs two blocks"
    assert len(level.board.plan(view(1, waiting=1)).pause) == 3


def test_only_what_the_level_has_becomes_certain() -> None:
    level = Level(1, 4, 4, finished=1)
    commit(level, b0=9, b1=2)
    level.board.commit("a", 2, {0: 4})
    level.board.commit("b", 1, {0: 4})
    assert level.start() == [(0, child) for child in range(4)]
    level.finish(1)
    assert not any(d.is_certain for d in level.beams[1].drafts), "it had not finished"


def test_drafts_pause_at_once_and_go_on_later() -> None:
    level = Level(4, 4, 4, finished=2)
    started = level.plan()
    for draft in started:
        level.draw(draft)
    plan = level.board.plan(view(1, waiting=1))
    assert set(plan.pause) == set(started)
    assert plan.run == level.board.running == ()
    assert all(draft.state is DraftState.PAUSED for draft in started)
    assert level.board.plan(view(1, waiting=1)).pause == ()
    assert set(level.plan()) == set(started)
    assert [draft.token_ids for draft in started] == [[5], [5]]
    assert set(level.board.plan(view(1, spare=2)).pause) == set(started)


@pytest.mark.parametrize("end", [DraftState.ADOPTED, DraftState.DROPPED, DraftState.COMPLETE])
def test_an_illegal_move_changes_nothing(end: DraftState) -> None:
    draft = Level(4, 4).finish(0)
    draft.move(end)
    legal = {DraftState.ADOPTED, DraftState.DROPPED} if end is DraftState.COMPLETE else set()
    for state in set(DraftState) - legal:
        with pytest.raises(ValueError, match=f"{end} -> {state} is not a legal move"):
            draft.move(state)
    assert draft.state is end


def test_a_paused_draft_takes_the_token_that_was_in_flight() -> None:
    level = Level(4, 4)
    draft = level.finish(0)
    assert level.plan() == (draft,)
    level.board.pause(draft)
    level.draw(draft)
    assert (draft.state, draft.token_ids) == (DraftState.PAUSED, [5])
    level.draw(draft, 6, FinishReason.BOUNDARY)
    assert (draft.state, draft.finish) == (DraftState.COMPLETE, FinishReason.BOUNDARY)
    assert level.board.running == ()


def test_children_start_fresh_from_the_boundary() -> None:
    """Child 0 goes on with its parent's noise; the others start empty, with their own seeds. The
    paper's public artifact lets duplicates keep their parent's speculated steps."""
    level = Level(4, 4, 4, 4, 4, finished=1)
    for beam in (1, 2, 3):
        level.finish(beam, FinishReason.STOP)
    (first, *others) = level.plan()
    level.draw(first)
    assert [draft.seed for draft in (first, *others)] == [0, 1, 2, 3]
    assert all((draft.path, draft.token_ids) == ((*PATH, 0), []) for draft in others)
    assert first.path == (*PATH, 0)
    assert adopt(level, 1) is others[0]
    assert others[0].token_ids == []


def test_a_draft_is_adopted_by_its_own_step_only_and_once() -> None:
    level = Level(4, 4, finished=1)
    (draft,) = level.plan()
    requested, others = continuation(0, level=2), continuation(0, level=2, run="b")
    for step, path, seed, sampling in (
        (requested, (*PATH, 1), 0, SAMPLING),
        (requested, (*PATH, 0), 1, SAMPLING),
        (requested, (*PATH, 0), 0, Sampling(temperature=0.1)),
        (others, (*PATH, 0), 0, SAMPLING),
    ):
        assert level.board.adopt(step, path, seed, sampling) is None
    assert (adopt(level, 0), adopt(level, 0)) == (draft, None)
    assert level.board.running == ()


def test_a_beam_requested_twice_has_one_draft() -> None:
    """Otherwise the board would lose the first draft, and the engine would keep it."""
    level = Level(4)
    again = level.board.add_beam(continuation(0), Sampling(temperature=1.3))
    draft = level.finish(0)
    assert level.board.finish_beam(again, draft.path, ends_path=False) is None
    assert level.board.drop_unused("a", [1], {draft.seed}) == ()
    assert level.board.drop_unused("a", [2], {draft.seed}) == (draft,), "too old to be requested"


def test_a_request_may_end_after_its_run() -> None:
    level = Level(4, 4, 4)
    mine = level.finish(0)
    assert level.board.end_run("a") == (mine,)
    level.board.cancel_beam(level.beams[1])
    assert level.finish(2) is None


def test_a_dead_engine_forgets_drafts_but_not_the_count() -> None:
    level = Level(4, 4, finished=1)
    (draft,) = level.plan()
    level.draw(draft)
    level.board.clear()
    assert (level.board.running, draft.state) == ((), DraftState.DROPPED)
    assert (adopt(level, 0), level.board.count_drawn("a")) == (None, (1, 0))


def test_an_expansion_waits_for_earlier_ones_of_its_run_but_not_for_later_ones() -> None:
    board = DraftBoard()
    beams = [board.add_beam(continuation(n, level=n), SAMPLING) for n in (1, 2, 3)]
    other = board.add_beam(continuation(9, level=1, run="b"), SAMPLING)
    board.finish_beam(beams[1], (*PATH, 2), ends_path=False)
    assert [draft.path[-1] for draft in board.plan(view(3)).run] == [2]
    board.finish_beam(beams[0], (*PATH, 1), ends_path=False)
    assert len(board.plan(view(2)).pause) == 1, "its turn has come; level 3 does not matter"
    board.finish_beam(other, (*PATH, 9), ends_path=False)
    assert board.plan(view(1)).run == ()


def test_a_decided_level_keeps_its_wanted_drafts_and_waits_no_more() -> None:
    board = DraftBoard()
    slow = board.add_beam(continuation(1, level=1), SAMPLING)
    quick = board.add_beam(continuation(2, level=2), SAMPLING)
    wanted = board.finish_beam(quick, (*PATH, 2), ends_path=False)
    assert board.plan(view(1)).run == (wanted,)
    assert board.drop_unused("a", [2], {wanted.seed}) == ()
    assert board.plan(view(1)).pause == (wanted,)
    requested = continuation(3, level=3)
    assert board.adopt(requested, wanted.path, wanted.seed, SAMPLING) is wanted
    assert board.drop_unused("a", [], ()) == ()
    board.cancel_beam(quick)  # it is over, and its level is forgotten
    board.cancel_beam(slow)
    assert board.end_run("a") == ()
