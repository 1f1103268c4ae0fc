"""Speculation's pure core: score bins, two phases, what is begun, held, taken over and dropped.

The artifact's speculative priority is flat: `test_the_best_bin_goes_first` fails on that. Its
duplicates keep their parent's speculated steps: `test_children_start_fresh_…` fails on that.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.drafts import Beam, Draft, DraftState
from flashedge.scheduling.speculation.slots import (
    BatchView,
    BeamState,
    FollowUp,
    flat_batch,
    places,
    potentials,
    truncated,
)
from flashedge.types import FinishReason, Granularity, Sampling

SAMPLING = Sampling()
STEP = Granularity(max_tokens=8)
PATH = (7, 7)


def view(running: int, *, waiting: int = 0, most: int = 64, spare: int = 1000) -> BatchView:
    return BatchView(running=running, waiting=waiting, max_running=most, spare_blocks=spare)


def follow_up(beam: int, *, potential: int = 4, level: int = 1, run: str = "a") -> FollowUp:
    return FollowUp(
        run=run,
        level=level,
        seeds=tuple(100 * beam + child for child in range(4)),
        granularity=STEP,
        potential=potential,
    )


class Level:
    """A board with one level of beams, of these potentials."""

    def __init__(self, *potential: int) -> None:
        self.board = DraftBoard()
        self.beams = [
            self.board.begin(follow_up(i, potential=p), SAMPLING) for i, p in enumerate(potential)
        ]

    def finish(self, beam: int, reason: FinishReason = FinishReason.BOUNDARY) -> Draft | None:
        return self.board.finish(self.beams[beam], (*PATH, beam), reason)

    @property
    def generating(self) -> int:
        return sum(beam.state is BeamState.GENERATING for beam in self.beams)

    def begun(self) -> list[tuple[int, int]]:
        """Plan as if all beams that generate were in the batch: (beam, child) of each begun."""
        run = self.board.plan(view(self.generating)).run
        return [(draft.path[-1], draft.child) for draft in run]


def adopt(board: DraftBoard, beam: Beam, child: int, path: tuple[int, ...]) -> Draft | None:
    seed = beam.follow_up.seeds[child]
    return board.adopt(follow_up(0, level=beam.follow_up.level + 1), path, seed, SAMPLING)


# ---------------------------------------------------------------- who, and how many


def test_potential_is_the_bin_from_below() -> None:
    """M_i = B - j + 1, C_1 the highest of B equal bins."""
    assert potentials([1.0, 0.8, 0.6, 0.4, 0.2, 0.0], 4) == (4, 4, 3, 2, 1, 1)
    assert potentials([0.9, 0.1], 2) == (2, 1)
    assert potentials([0.3, 0.9], 1) == (1, 1)


def test_without_a_difference_nothing_speaks_against_a_beam() -> None:
    assert potentials([None, None], 4) == (4, 4)
    assert potentials([0.5, 0.5], 4) == (4, 4)
    assert potentials([0.2, None, 0.8], 4) == (1, 4, 4)
    assert potentials([], 4) == ()
    assert potentials([0.3], 0) == (0,)


def test_the_batch_stays_as_large_as_it_was() -> None:
    assert places(view(5), 3, 0) == 3
    assert places(view(5, most=6), 3, 0) == 1
    assert places(view(6, most=6), 3, 0) == 0


def test_the_batch_is_as_large_as_costs_nothing() -> None:
    wide = replace(view(5), flat_batch=32)
    assert places(wide, 3, 0) == 27
    assert places(wide, 0, 0) == 0, "nobody has finished"
    assert places(replace(wide, flat_batch=6), 3, 0) == 1, "less than they left"
    assert places(replace(wide, flat_batch=4), 3, 0) == 0
    assert places(replace(wide, max_running=9), 3, 0) == 4
    assert places(replace(wide, waiting=1), 3, 9) == 0


def test_no_head_start_where_too_many_steps_would_have_none() -> None:
    """16 beams with 64 branches: at least three in four must have a place."""
    wide = replace(view(16), flat_batch=64)
    assert places(wide, 3, 0, beams=16, wanted=64) == 48
    assert places(replace(wide, running=17), 3, 0, beams=16, wanted=64) == 0
    assert places(replace(view(3), flat_batch=4), 1, 0, beams=4, wanted=16) == 1, "few beams"
    assert places(view(16), 3, 0, beams=16, wanted=64) == 3, "what a step costs is not known"


def test_the_flat_batch_is_the_largest_within_the_tolerance() -> None:
    def step_s(batch: int) -> float:
        return 5.0 + max(0, batch - 10) * 0.1

    assert flat_batch(step_s, 256) == max(b for b in range(1, 257) if step_s(b) <= 6.25)
    assert flat_batch(step_s, 4) == 4
    assert flat_batch(lambda batch: float(batch), 256) == 1


def test_none_in_phase_one_or_when_memory_is_short() -> None:
    assert places(view(5, waiting=1), 3, 3) == 0
    assert places(view(5, spare=7), 3, 3) == 0
    assert places(view(5, spare=8), 3, 3) == 3
    assert places(view(5, spare=8), 3, 1) == 2  # a new one takes a block and grows into one


def test_the_truncated_share_is_drawn_around_r() -> None:
    kept = [truncated(1000, 0.85, seed) for seed in range(400)]
    assert mean(kept) == pytest.approx(850, abs=20)
    assert len(set(kept)) > 100
    assert min(kept) >= 0
    assert max(kept) <= 1000
    assert truncated(0, 0.85, 1) == 0


# ---------------------------------------------------------------- lazily


def test_places_are_filled_as_beams_finish() -> None:
    level = Level(4, 4, 4)
    assert level.begun() == []
    level.finish(1)
    assert level.begun() == [(1, 0)]
    assert level.begun() == []
    level.finish(0)
    assert level.begun() == [(0, 0)]
    level.finish(2)  # the last one: nobody is waited for
    plan = level.board.plan(view(0))
    assert {draft.path[-1] for draft in plan.hold} == {0, 1}
    assert plan.run == ()


def test_the_best_bin_goes_first() -> None:
    level = Level(1, 4, 2, 4, 4)
    for beam in (0, 1, 2, 3):
        level.finish(beam)
    assert level.begun() == [(1, 0), (3, 0), (1, 1), (3, 1)]


def test_potential_bounds_the_children() -> None:
    level = Level(1, 2, 4, 4, 4, 4, 4)
    for beam in (0, 1):
        level.finish(beam)
    for beam in (2, 3, 4, 5):  # they end: places without a candidate
        level.finish(beam, FinishReason.STOP)
    assert level.begun() == [(1, 0), (1, 1), (0, 0)]


def test_what_runs_is_not_displaced() -> None:
    level = Level(1, 4, 4)
    level.finish(0)
    assert level.begun() == [(0, 0)]
    level.finish(1)
    assert level.begun() == [(1, 0)]


def test_a_whole_draft_gives_its_place_to_the_next() -> None:
    level = Level(4, 4)
    level.finish(0)
    (draft,) = level.board.plan(view(1)).run
    level.board.drawn(draft, 5, -0.1)
    assert level.begun() == []
    level.board.drawn(draft, 6, -0.2, FinishReason.BOUNDARY)
    assert draft.state is DraftState.WHOLE
    assert level.begun() == [(0, 1)]
    assert level.board.whole("a") == (draft,)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_nothing_follows_a_path_that_ended(reason: FinishReason) -> None:
    level = Level(4, 4)
    assert level.finish(0, reason) is None
    assert level.begun() == []


def test_a_level_waits_for_no_cancelled_beam() -> None:
    level = Level(4, 4)
    level.finish(0)
    assert level.begun() == [(0, 0)]
    level.board.withdraw(level.beams[1])
    assert len(level.board.plan(view(0)).hold) == 1


def test_other_runs_do_not_lend_their_places() -> None:
    """Run b's level is over: its finished beams wait for nobody, though run a still generates."""
    level = Level(4)
    other = level.board.begin(follow_up(9, run="b"), SAMPLING)
    level.board.finish(other, (*PATH, 9), FinishReason.BOUNDARY)
    assert level.board.plan(view(1)).run == ()


# ---------------------------------------------------------------- at once


def test_it_stops_at_once_and_goes_on_later() -> None:
    level = Level(4, 4, 4)
    level.finish(0)
    level.finish(1)
    begun = level.board.plan(view(1)).run
    for draft in begun:
        level.board.drawn(draft, 5, -0.1)
    stopped = level.board.plan(view(1, waiting=1))
    assert set(stopped.hold) == set(begun)
    assert stopped.run == level.board.running == ()
    assert level.beams[0].state is BeamState.HELD
    assert level.board.plan(view(1, waiting=1)).hold == ()
    assert set(level.board.plan(view(1)).run) == set(begun)
    assert [draft.token_ids for draft in begun] == [[5], [5]]
    assert set(level.board.plan(view(1, spare=2)).hold) == set(begun)


def test_the_states_of_a_beam() -> None:
    level = Level(4, 4)
    beam = level.beams[0]
    assert beam.state is BeamState.GENERATING
    level.finish(0)
    assert beam.state is BeamState.FINISHED
    (draft,) = level.board.plan(view(1)).run
    assert beam.state is BeamState.SPECULATING
    level.board.drawn(draft, 5, -0.1)
    level.board.stopped(draft)
    assert beam.state is BeamState.HELD
    assert adopt(level.board, beam, 0, (*PATH, 0)) is draft
    assert beam.state is BeamState.FINISHED


def test_an_illegal_move_changes_nothing() -> None:
    level = Level(4, 4)
    draft = level.finish(0)
    assert draft is not None
    with pytest.raises(ValueError, match="held -> whole is not a legal move"):
        draft.move(DraftState.WHOLE)
    assert draft.state is DraftState.HELD


# ---------------------------------------------------------------- taken over


def test_children_start_fresh_from_the_boundary() -> None:
    """Child 0 goes on with its parent's noise; the others begin with nothing, on their own."""
    level = Level(4, 4, 4, 4, 4)
    level.finish(0)
    for beam in (1, 2, 3):
        level.finish(beam, FinishReason.STOP)
    (first, *others) = level.board.plan(view(1)).run
    for _ in range(5):
        level.board.drawn(first, 5, -0.1)
    assert [draft.seed for draft in (first, *others)] == [0, 1, 2, 3]
    for draft in others:
        assert draft.path == first.path == (*PATH, 0)
        assert draft.token_ids == []
    found = adopt(level.board, level.beams[0], 1, (*PATH, 0))
    assert found is others[0]
    assert found.token_ids == []


def test_only_the_very_step_is_taken_over_and_once() -> None:
    level = Level(4, 4)
    level.finish(0)
    (draft,) = level.board.plan(view(1)).run
    board, asked = level.board, follow_up(0, level=2)
    assert board.adopt(asked, (*PATH, 1), 0, SAMPLING) is None
    assert board.adopt(asked, (*PATH, 0), 1, SAMPLING) is None
    assert board.adopt(asked, (*PATH, 0), 0, Sampling(temperature=0.1)) is None
    assert board.adopt(follow_up(0, level=3), (*PATH, 0), 0, SAMPLING) is None
    assert board.adopt(follow_up(0, level=2, run="b"), (*PATH, 0), 0, SAMPLING) is None
    assert board.adopt(asked, (*PATH, 0), 0, SAMPLING) is draft
    assert board.adopt(asked, (*PATH, 0), 0, SAMPLING) is None
    assert board.running == ()
    assert board.own_stream(asked, (*PATH, 0)) is draft


def test_a_beam_asked_for_twice_has_one_draft() -> None:
    """Else the board would lose sight of the first, and the engine would hold it for ever."""
    level = Level(4)
    again = level.board.begin(follow_up(0), Sampling(temperature=1.3))
    draft = level.finish(0)
    assert draft is not None
    assert level.board.finish(again, draft.path, FinishReason.BOUNDARY) is None
    assert level.board.end("a") == (draft,)


def test_what_is_not_kept_is_dropped_and_all_is_counted() -> None:
    level = Level(4, 4, 4)
    level.finish(0)
    level.finish(1)
    kept, dropped = level.board.plan(view(1)).run
    for draft in (kept, dropped, dropped):
        level.board.drawn(draft, 5, -0.1)
    level.board.plan(view(1, waiting=1))
    assert level.board.keep("a", 2, {kept.seed}) == (dropped,)
    assert dropped.state is DraftState.GONE
    assert level.board.keep("b", 2, ()) == ()
    assert level.board.tokens_drawn("a") == 3
    assert level.board.keep("a", 3, {kept.seed}) == (kept,)  # too old to be asked for
    assert level.board.end("a") == ()
    assert level.board.tokens_drawn("a") == 0


def test_the_end_of_a_run_drops_all_of_it_and_nothing_else() -> None:
    level = Level(4, 4)
    other = level.board.begin(follow_up(5, run="b"), SAMPLING)
    level.board.begin(follow_up(6, run="b"), SAMPLING)
    mine = level.finish(0)
    theirs = level.board.finish(other, (*PATH, 5), FinishReason.BOUNDARY)
    assert level.board.end("a") == (mine,)
    assert level.board.plan(view(1)).run == (theirs,)
    level.board.withdraw(level.beams[1])  # its request ends later: nothing to withdraw from
    assert level.finish(1) is None


def test_a_dead_engine_forgets_drafts_but_not_the_count() -> None:
    level = Level(4, 4)
    level.finish(0)
    (draft,) = level.board.plan(view(1)).run
    level.board.drawn(draft, 5, -0.1)
    level.board.clear()
    assert level.board.running == ()
    assert adopt(level.board, level.beams[0], 0, (*PATH, 0)) is None
    assert level.board.tokens_drawn("a") == 1
