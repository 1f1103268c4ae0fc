"""The beams of an engine's levels and what was drawn beyond them: begun, held, taken over, dropped.

An engine's scheduler tells the board what happens and is told which drafts to run next. The board
knows neither KV nor clock, so that every engine can use it.

    beam = board.begin(follow_up, sampling)      a step is asked for
    board.finish(beam, path, reason)             it is done: its place may be filled
    plan = board.plan(view)                      before each engine step
    board.drawn(draft, token, logprob, finish)   a token beyond a boundary
    draft = board.adopt(…)                       the next step is asked for: go on from there
    board.keep(run, level, seeds)                the next level is known: the rest is of no use
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from flashedge.scheduling.speculation.drafts import Beam, Draft, DraftState
from flashedge.scheduling.speculation.slots import BatchView, FollowUp, places
from flashedge.types import FinishReason, Sampling, TokenIds

_S = DraftState


@dataclass(slots=True, eq=False)
class _Level:
    """generating: beams on their way; left: places of those that are done; wanted: children of all
    that may be begun ahead; beams: those that are done and that something can follow; drafts: by
    the path they continue, and seed."""

    generating: int = 0
    left: int = 0
    wanted: int = 0
    beams: list[Beam] = field(default_factory=list)
    drafts: dict[tuple[TokenIds, int], Draft] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether finished beams have somebody to wait for."""
        return self.generating > 0 and self.left > 0

    def knows(self, draft: Draft) -> bool:
        """Whether one of the same path and seed is there (the beam was asked for twice)."""
        other = self.drafts.get((draft.path, draft.seed))
        return other is not None and other.state is not _S.GONE

    def note(self, beam: Beam, draft: Draft) -> Draft:
        beam.drafts.append(draft)
        self.drafts[draft.path, draft.seed] = draft
        return draft


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Drafts to take out of the batch, and drafts to put into it. The board has moved them."""

    hold: tuple[Draft, ...] = ()
    run: tuple[Draft, ...] = ()


class DraftBoard:
    """All levels of one engine. Nothing here raises but for a caller's mistake (ValueError)."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, int], _Level] = {}
        self._running: dict[Draft, None] = {}
        self._drawn: dict[str, int] = {}
        self._finished = 0
        self._exhausted = False  # no draft was left for a place, and nothing has changed since

    # ------------------------------------------------------------ standard beams

    def begin(self, follow_up: FollowUp, sampling: Sampling) -> Beam:
        level = self._levels.setdefault((follow_up.run, follow_up.level), _Level())
        level.generating += 1
        level.wanted += follow_up.potential
        self._exhausted = False
        return Beam(follow_up=follow_up, sampling=sampling)

    def withdraw(self, beam: Beam) -> None:
        """The step was cancelled or failed. Does nothing to one that is done."""
        level = self._level(beam.follow_up)
        if beam.path is None and level is not None:
            level.generating -= 1
            level.wanted -= beam.follow_up.potential

    def finish(self, beam: Beam, path: TokenIds, reason: FinishReason) -> Draft | None:
        """The step is done and leaves its place. Returns child 0's draft, held and empty, which
        may take over the beam's KV; None when nothing can follow."""
        level = self._level(beam.follow_up)
        if level is None or beam.path is not None:
            return None
        beam.path, beam.order = path, self._finished
        self._finished += 1
        level.generating -= 1
        level.left += 1
        if reason.ends_path or not beam.unbegun or level.knows(beam.draft(0)):
            level.wanted -= beam.follow_up.potential
            return None
        level.beams.append(beam)
        self._exhausted = False
        return level.note(beam, beam.draft(0))

    # ------------------------------------------------------------ drafts

    @property
    def running(self) -> tuple[Draft, ...]:
        return tuple(self._running)

    def plan(self, view: BatchView) -> DraftPlan:
        """Fill the places that are free; take out what must give way. What runs is not displaced
        by what would be chosen now: places are filled as they fall free."""
        live = [level for level in self._levels.values() if level.live]
        if not live and not self._running:
            return DraftPlan()
        left = sum(level.left for level in live)
        most = places(
            view,
            left,
            len(self._running),
            beams=sum(level.left + level.generating for level in live) / max(1, len(live)),
            wanted=sum(level.wanted for level in live),
        )
        going = [draft for draft in self._running if self._is_live(draft)]
        if len(going) > most:
            going = nsmallest(most, going, key=_rank)
        stay = set(going)
        hold = tuple(draft for draft in self._running if draft not in stay)
        for draft in hold:
            self.stopped(draft)
        free = most - len(going)
        if free <= 0 or self._exhausted:
            return DraftPlan(hold=hold)
        found = nsmallest(free, self._candidates(live, free), key=lambda c: _rank(c[2]))
        self._exhausted = len(found) < free
        run = tuple(draft for _, _, draft in found)
        for level, beam, draft in found:
            if draft.child == len(beam.drafts):
                level.note(beam, draft)
            draft.move(_S.RUNNING)
            self._running[draft] = None
        return DraftPlan(hold=hold, run=run)

    def stopped(self, draft: Draft) -> None:
        """The draft is out of the engine's batch; it may go on later."""
        draft.move(_S.HELD)
        del self._running[draft]
        self._exhausted = False

    def drawn(
        self, draft: Draft, token: int, logprob: float, finish: FinishReason | None = None
    ) -> None:
        """A token of a running draft; `finish` with the last one."""
        draft.token_ids.append(token)
        draft.logprobs.append(logprob)
        run = draft.follow_up.run
        self._drawn[run] = self._drawn.get(run, 0) + 1
        if finish is not None:
            draft.finish = finish
            draft.move(_S.WHOLE)
            del self._running[draft]

    def whole(self, run: str) -> tuple[Draft, ...]:
        """Drafts of a run whose step is done."""
        found = (d for level in self._of(run) for d in self._levels[run, level].drafts.values())
        return tuple(draft for draft in found if draft.state is _S.WHOLE)

    def adopt(
        self, follow_up: FollowUp, path: TokenIds, seed: int, sampling: Sampling
    ) -> Draft | None:
        """A step is asked for: its draft if there is one, of the very path, seed and sampling. The
        draft is gone from the board; follow_up: of the step that is asked for."""
        above = self._levels.get((follow_up.run, follow_up.level - 1))
        draft = above.drafts.get((path, seed)) if above is not None else None
        if draft is None or draft.state is _S.GONE or draft.sampling != sampling:
            return None
        self._let_go(draft)
        return draft

    def own_stream(self, follow_up: FollowUp, path: TokenIds) -> Draft | None:
        """Child 0's draft behind `path`, taken over or not. For the paper's truncation alone."""
        above = self._levels.get((follow_up.run, follow_up.level - 1), _Level())
        return next((d for d in above.drafts.values() if d.child == 0 and d.path == path), None)

    # ------------------------------------------------------------ the end of levels

    def keep(self, run: str, level: int, seeds: Collection[int]) -> tuple[Draft, ...]:
        """Level `level` is known: it begins with `seeds`. The drafts of no use, dropped."""
        dropped: list[Draft] = []
        for number in [n for n in self._of(run) if n < level]:
            drafts = self._levels[run, number].drafts
            old = number < level - 1
            dropped += self._drop(d for d in drafts.values() if old or d.seed not in seeds)
            if old:
                del self._levels[run, number]
        return tuple(dropped)

    def end(self, run: str) -> tuple[Draft, ...]:
        """The run is over and forgotten. Its drafts, dropped."""
        levels = [self._levels.pop((run, number)) for number in self._of(run)]
        self._drawn.pop(run, None)
        return self._drop(draft for level in levels for draft in level.drafts.values())

    def tokens_drawn(self, run: str) -> int:
        """Tokens drawn ahead for a run so far, whatever became of them."""
        return self._drawn.get(run, 0)

    def clear(self) -> None:
        """The engine died: no draft is left. What was drawn stays counted."""
        self._levels.clear()
        self._running.clear()

    # ------------------------------------------------------------ inner

    def _level(self, follow_up: FollowUp) -> _Level | None:
        return self._levels.get((follow_up.run, follow_up.level))

    def _of(self, run: str) -> list[int]:
        return [level for of, level in self._levels if of == run]

    def _is_live(self, draft: Draft) -> bool:
        level = self._level(draft.follow_up)
        return level is not None and level.live

    def _candidates(
        self, live: Iterable[_Level], free: int
    ) -> Iterator[tuple[_Level, Beam, Draft]]:
        """Held drafts, and of each beam the children that could be begun now."""
        for level in live:
            for beam in level.beams:
                for draft in beam.drafts:
                    if draft.state is _S.HELD:
                        yield level, beam, draft
                for child in beam.unbegun[:free]:
                    yield level, beam, beam.draft(child)

    def _drop(self, drafts: Iterable[Draft]) -> tuple[Draft, ...]:
        dropped = tuple(draft for draft in drafts if draft.state is not _S.GONE)
        for draft in dropped:
            self._let_go(draft)
        return dropped

    def _let_go(self, draft: Draft) -> None:
        self._running.pop(draft, None)
        draft.move(_S.GONE)


def _rank(draft: Draft) -> tuple[int, int, int]:
    return draft.rank
