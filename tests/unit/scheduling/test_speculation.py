"""Speculation's pure core: score bins, what drafts gain, and the life cycle of drafts."""

import pytest

from flashedge.scheduling.speculation import draft_choice
from flashedge.scheduling.speculation.draft_board import DraftBoard
from flashedge.scheduling.speculation.draft_choice import (
    CERTAIN,
    BatchView,
    DraftGains,
    RequestRates,
    count_places,
    sort_draft,
)
from flashedge.scheduling.speculation.drafts import Continuation, Draft, DraftState
from flashedge.types import FinishReason, Granularity, Sampling

SAMPLING = Sampling()
STEP = Granularity(max_tokens=8)
PATH = (7, 7)


def view(
    running: int, *, waiting: int = 0, most: int = 64, spare: int = 1000, sequence_s: float = 0.0
) -> BatchView:
    """A step of no sequence takes a second."""
    return BatchView(
        running=running,
        waiting=waiting,
        max_running=most,
        spare_blocks=spare,
        base_s=1.0,
        sequence_s=sequence_s,
    )


def continuation(beam: int, *, max_drafts: int = 4, level: int = 1, run: str = "a") -> Continuation:
    seeds = tuple(100 * beam + child for child in range(4))
    return Continuation(run=run, level=level, seeds=seeds, granularity=STEP, max_drafts=max_drafts)


class Level:
    """Beams, each with its most drafts. The first `finished` of them have ended."""

    def __init__(self, *max_drafts: int, finished: int = 0) -> None:
        self.board = DraftBoard()
        steps = [continuation(i, max_drafts=m) for i, m in enumerate(max_drafts)]
        self.beams = [self.board.add_beam(step, PATH, -1, SAMPLING)[0] for step in steps]
        for beam in range(finished):
            self.finish(beam)

    def finish(self, beam: int, reason: FinishReason = FinishReason.BOUNDARY) -> Draft | None:
        return self.board.finish_beam(self.beams[beam], (*PATH, beam), ends_path=reason.ends_path)

    def plan(self, running: int = 1, **fields: int) -> tuple[Draft, ...]:
        """The drafts that start while so many beams generate."""
        return self.board.plan(view(running, **fields)).run

    def start(self, **fields: int) -> list[tuple[int, int]]:
        """Plan as if all generating beams were in the batch: (beam, child) of each new draft."""
        run = self.plan(sum(not beam.path for beam in self.beams), **fields)
        return [(draft.path[-1], draft.child) for draft in run]

    def draw(self, draft: Draft, token: int = 5, finish: FinishReason | None = None) -> None:
        self.board.append(draft, token, -0.1, finish)


def adopt(level: Level, child: int) -> Draft | None:
    """Ask for this child of the first beam."""
    seed = level.beams[0].continuation.seeds[child]
    return level.board.add_beam(continuation(0, level=2), (*PATH, 0), seed, SAMPLING)[1]


def test_more_drafts_in_higher_bins() -> None:
    """M_i = B - j + 1, C_1 the highest of B equal bins. Equal scores limit nothing."""
    limit = draft_choice.limit_drafts
    assert limit([1.0, 0.8, 0.6, 0.4, 0.2, 0.0], 4) == (4, 4, 3, 2, 1, 1)
    assert (limit([0.9, 0.1], 2), limit([0.3, 0.9], 1)) == ((2, 1), (1, 1))
    assert limit([None, None], 4) == limit([0.5, 0.5], 4) == (4, 4)
    assert limit([0.2, None, 0.8], 4) == (1, 4, 4)
    assert (limit([], 4), limit([0.3], 0)) == ((), (0,))


@pytest.mark.parametrize(
    ("batch", "drafting", "places"),
    [
        (view(5, most=6), 0, 1),
        (view(6, most=6), 0, 0),
        pytest.param(view(5, waiting=1), 3, 0, id="requests wait"),
        pytest.param(view(5, spare=7), 3, 0, id="memory is short"),
        (view(5, spare=8), 3, 3),
        pytest.param(view(5, spare=8), 1, 2, id="a new draft needs two blocks"),
    ],
)
def test_places(batch: BatchView, drafting: int, places: int) -> None:
    assert count_places(batch, drafting) == places


# ---------------------------------------------------------------- which drafts are worth their time


def count_levels(*chances: float, steps: tuple[int, ...], ahead: int = 10) -> DraftGains:
    """Levels of four steps, whose children had these chances and could begin `ahead` steps before.
    Four times as many children might have been requested, with the same chances."""
    gains = DraftGains()
    for _ in range(20):
        level = [(chance, ahead, taken) for chance, taken in zip(chances, steps, strict=True)]
        gains.note(level, [(chance, ahead) for chance in chances for _ in range(4)])
    return gains


def test_all_are_drafted_where_sequences_cost_nothing() -> None:
    gains = count_levels(0.3, 0.3, 0.9, 0.9, steps=(20, 20, 20, 20))
    assert gains.choose_least_chance(view(4, sequence_s=0.0), 4, 1, 4) <= 0.3


@pytest.mark.parametrize(
    ("steps", "lowest", "highest"),
    [
        pytest.param((5, 30, 20, 20), 0.35, 0.8, id="the unlikely one is short"),
        pytest.param((30, 5, 5, 5), 0.0, 0.25, id="the unlikely one is long"),
    ],
)
def test_the_least_chance_follows_the_steps_that_end_levels(
    steps: tuple[int, ...], lowest: float, highest: float
) -> None:
    """A level is shortened by its longest step alone, and costs what the others draw."""
    gains = count_levels(0.3, 0.9, 0.9, 0.9, steps=steps)
    chosen = gains.choose_least_chance(view(4, sequence_s=0.04), 4, 1, 4)
    assert lowest <= chosen <= highest


def test_nothing_pays_where_a_late_step_ends_every_level() -> None:
    gains = DraftGains()
    for _ in range(20):
        gains.note([(0.9, 10, 20), (0.9, 0, 20)], [(0.9, 10)] * 8)
    assert gains.choose_least_chance(view(2, sequence_s=0.01), 2, 1, 4) == CERTAIN


def test_the_more_runs_wait_for_a_step_the_more_a_draft_costs() -> None:
    gains = count_levels(0.5, 0.5, 0.5, 0.5, steps=(20, 20, 20, 20))
    costs = view(4, sequence_s=0.02)
    assert gains.choose_least_chance(costs, 4, 1, 4) < CERTAIN
    assert gains.choose_least_chance(costs, 4, 100, 4) == CERTAIN


@pytest.mark.parametrize(
    ("width", "branching", "drafts"),
    [(4, 4, True), (16, 4, True), (256, 4, False), (16, 16, False)],
)
def test_before_levels_were_counted_only_narrow_ones_with_few_children_have_drafts(
    width: int, branching: int, drafts: bool
) -> None:
    costs = view(width, sequence_s=0.01)
    assert (DraftGains().choose_least_chance(costs, width, 1, branching) < CERTAIN) == drafts


def test_chances_follow_what_was_requested() -> None:
    rates = RequestRates()
    best, worst, second = sort_draft(4, 4, 0), sort_draft(4, 1, 0), sort_draft(4, 4, 1)
    assert {rates.find(sort_draft(4, 4, child)) for child in range(4)} == {0.25}
    for turn in range(400):
        rates.note(best, is_requested=turn % 2 == 0)
        rates.note(worst, is_requested=False)
        rates.note(second, is_requested=True)
    assert rates.find(best) == pytest.approx(0.5, abs=0.01)
    assert rates.find(worst) < 0.01
    assert rates.find(second) == rates.find(best), "no child is likelier than one before it"


def test_there_are_few_kinds_of_drafts_however_many_children_a_beam_may_have() -> None:
    kinds = {sort_draft(512, limit, child) for limit in range(1, 513) for child in range(limit)}
    assert len(kinds) < 100
    assert sort_draft(33, 33, 0) == sort_draft(63, 63, 0), "one path fewer is no other search"


def test_no_guess_counts_as_certain() -> None:
    """Though a beam with one child is often kept."""
    rates = RequestRates()
    for _ in range(1000):
        rates.note(sort_draft(1, 1, 0), is_requested=True)
    assert rates.find(sort_draft(1, 1, 0)) < CERTAIN


def test_drafts_begin_once_sequences_cost_less() -> None:
    level = Level(4, 4, finished=1)
    assert level.board.plan(view(1, sequence_s=1.0)).run == ()
    assert len(level.board.plan(view(1)).run) == 4


def test_the_board_learns_which_beams_are_kept() -> None:
    board, path = DraftBoard(), PATH
    for level in range(60):
        best, worst = continuation(0, level=level), continuation(1, level=level, max_drafts=1)
        beams = [board.add_beam(step, path, -1, SAMPLING)[0] for step in (best, worst)]
        for number, beam in enumerate(beams):
            board.finish_beam(beam, (*path, number), ends_path=False)
        path, kept = (*path, 0), set(best.seeds)
        board.drop_unused("a", [level], kept)
        for seed in best.seeds:
            _, draft = board.add_beam(continuation(0, level=level + 1), path, seed, SAMPLING)
            assert (draft is None) == (seed != best.seeds[0]), "nothing else was drafted"
    chances = [board._rates.find(sort_draft(4, limit, 0)) for limit in (4, 1)]
    assert chances[0] > 0.8
    assert chances[1] < 0.1


def test_the_likeliest_go_first() -> None:
    """Where all kinds are equally likely: every child 0, then the beam that finished first."""
    level = Level(1, 4, 2, 4, 4, finished=4)
    assert level.start(most=6) == [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1)]
    level = Level(4, 1, 4)
    for _ in range(20):
        level.board._rates.note(sort_draft(4, 4, 0), is_requested=True)
    level.finish(1)
    level.finish(0)
    assert level.start(most=2) == [(0, 0)]


def commit(level: Level, **children: int) -> None:
    """children: their numbers by beam, as in b0=2."""
    seeds = {level.beams[int(b[1:])].continuation.seeds[0]: n for b, n in children.items()}
    level.board.commit("a", 1, seeds)


def test_certain_children_go_first_and_where_no_guess_pays() -> None:
    """There is room for two. The second beam has three certain children, and one may be guessed."""
    level = Level(4, 1, 4, finished=2)
    guesses = level.plan(most=3)
    assert [(d.path[-1], d.child) for d in guesses] == [(0, 0), (1, 0)]
    commit(level, b1=3)
    plan = level.board.plan(view(1, most=3))
    assert [(d.path[-1], d.child) for d in plan.pause] == [(0, 0)]
    assert [(d.path[-1], d.child, d.is_certain) for d in plan.run] == [(1, 1, True)]
    level.draw(plan.run[0])
    assert level.board.count_drawn("a") == (1, 1)
    dear = view(1, sequence_s=1.0)
    assert [d.is_certain for d in level.board.plan(dear).run] == [True]
    assert len(level.board.running) == 3


def test_while_only_scores_are_waited_for_certain_children_go_on_and_others_pause() -> None:
    level = Level(4, 4, finished=1)
    level.plan()
    level.finish(1)
    assert len(level.board.plan(view(0)).pause) == 4
    commit(level, b1=2)
    assert level.board.has_news, "the engine has no request that would make it plan"
    assert [(d.path[-1], d.child) for d in level.board.plan(view(0)).run] == [(1, 0), (1, 1)]
    assert not level.board.has_news
    level.board.drop_unused("a", [1], set(level.beams[1].continuation.seeds))
    assert len(level.board.plan(view(0)).pause) == 2, "their requests are on their way"


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
    assert level.start(most=6) == [(0, child) for child in range(4)]
    level.finish(1)
    assert not any(d.is_certain for d in level.beams[1].drafts), "it had not finished"


def test_drafts_pause_at_once_and_go_on_later() -> None:
    level = Level(4, 4, 4, finished=2)
    started = level.plan(most=3)
    for draft in started:
        level.draw(draft)
    plan = level.board.plan(view(1, waiting=1))
    assert set(plan.pause) == set(started)
    assert plan.run == level.board.running == ()
    assert all(draft.state is DraftState.PAUSED for draft in started)
    assert level.board.plan(view(1, waiting=1)).pause == ()
    assert set(level.plan(most=3)) == set(started)
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
    assert level.plan(most=2) == (draft,)
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
    (draft,) = level.plan(most=2)
    requested, others = continuation(0, level=2), continuation(0, level=2, run="b")
    for step, path, seed, sampling in (
        (requested, (*PATH, 1), 0, SAMPLING),
        (requested, (*PATH, 0), 1, SAMPLING),
        (requested, (*PATH, 0), 0, Sampling(temperature=0.1)),
        (others, (*PATH, 0), 0, SAMPLING),
    ):
        assert level.board.add_beam(step, path, seed, sampling)[1] is None
    assert (adopt(level, 0), adopt(level, 0)) == (draft, None)
    assert level.board.running == ()


def test_a_beam_requested_twice_has_one_draft() -> None:
    """Otherwise the board would lose the first draft, and the engine would keep it."""
    level = Level(4)
    again, _ = level.board.add_beam(continuation(0), PATH, -1, Sampling(temperature=1.3))
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
    (draft,) = level.plan(most=2)
    level.draw(draft)
    level.board.clear()
    assert (level.board.running, draft.state) == ((), DraftState.DROPPED)
    assert (adopt(level, 0), level.board.count_drawn("a")) == (None, (1, 0))


def test_an_expansion_waits_for_earlier_ones_of_its_run_but_not_for_later_ones() -> None:
    board = DraftBoard()
    beams = [board.add_beam(continuation(n, level=n), PATH, -1, SAMPLING)[0] for n in (1, 2, 3)]
    other, _ = board.add_beam(continuation(9, level=1, run="b"), PATH, -1, SAMPLING)
    board.finish_beam(beams[1], (*PATH, 2), ends_path=False)
    assert [draft.path[-1] for draft in board.plan(view(3, most=4)).run] == [2]
    board.finish_beam(beams[0], (*PATH, 1), ends_path=False)
    assert len(board.plan(view(2, most=3)).pause) == 1, "its turn has come; level 3 does not matter"
    board.finish_beam(other, (*PATH, 9), ends_path=False)
    assert board.plan(view(1)).run == ()


def test_a_decided_level_keeps_its_wanted_drafts_and_waits_no_more() -> None:
    board = DraftBoard()
    slow, _ = board.add_beam(continuation(1, level=1), PATH, -1, SAMPLING)
    quick, _ = board.add_beam(continuation(2, level=2), PATH, -1, SAMPLING)
    wanted = board.finish_beam(quick, (*PATH, 2), ends_path=False)
    assert board.plan(view(1, most=2)).run == (wanted,)
    assert board.drop_unused("a", [2], {wanted.seed}) == ()
    assert board.plan(view(1)).pause == (wanted,)
    requested = continuation(3, level=3)
    assert board.add_beam(requested, wanted.path, wanted.seed, SAMPLING)[1] is wanted
    assert board.drop_unused("a", [], ()) == ()
    board.cancel_beam(quick)  # it is over, and its level is forgotten
    board.cancel_beam(slow)
    assert board.end_run("a") == ()
