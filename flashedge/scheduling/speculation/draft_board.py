"""The state of an engine's speculation: its beams, their drafts, and which drafts run next.

An engine's scheduler reports what happens and asks which drafts to run. The board knows neither KV
nor a clock, so the simulator and vLLM's scheduler share this class.

    beam = board.add_beam(continuation, sampling)      a step is requested
    board.finish_beam(beam, path, ends_path=...)       it ends: its slot is free for drafts
    plan = board.plan(view)                            before each engine step
    board.append(draft, token, logprob, finish)        a running draft drew a token
    board.commit(run, level, children)                 these children will certainly be requested
    draft = board.adopt(...)                           the next step is requested: go on from here
    board.drop_unused(run, levels, seeds)              what follows is known: forget the rest
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest

from flashedge.scheduling.speculation.draft_choice import BatchView, count_places, count_slots
from flashedge.scheduling.speculation.drafts import Beam, Continuation, Draft, DraftState
from flashedge.types import FinishReason, Sampling, TokenIds

_S = DraftState


@dataclass(slots=True, eq=False)
class _BoardLevel:
    """The beams and drafts of one level of a run."""

    generating: int = 0
    """Beams whose step is being generated."""
    finished: int = 0
    """Beams whose step has ended: each left a slot."""
    max_drafts: int = 0
    """Sum of `Continuation.max_drafts` of the beams that may have children."""
    beams: list[Beam] = field(default_factory=list)
    """Finished beams that may have children."""
    certain: list[Beam] = field(default_factory=list)
    """Those that certainly have some."""
    drafts: dict[tuple[TokenIds, int], Draft] = field(default_factory=dict)
    """By path and seed."""
    is_decided: bool = False
    """Whether the search has chosen what follows, so that no beam waits any more."""

    def add(self, beam: Beam, draft: Draft) -> Draft:
        beam.drafts.append(draft)
        self.drafts[draft.path, draft.seed] = draft
        return draft


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Changes to the engine's batch. The board has moved the drafts already."""

    pause: tuple[Draft, ...] = ()
    run: tuple[Draft, ...] = ()


class DraftBoard:
    def __init__(self) -> None:
        self._levels: dict[tuple[str, int], _BoardLevel] = {}
        self._running: dict[Draft, None] = {}
        """In the order in which they began to run."""
        self._drawn: dict[str, int] = {}
        """Draft tokens by run."""
        self._certain: dict[str, int] = {}
        """Those of certain children."""
        self._num_finished = 0
        """Beams that have finished so far, of all runs."""
        self._is_exhausted = False
        """Whether no candidate was left, and nothing has changed since."""

    # ------------------------------------------------------------ beams

    def add_beam(self, continuation: Continuation, sampling: Sampling) -> Beam:
        """Note that a step is requested."""
        level = self._levels.setdefault(continuation.key, _BoardLevel())
        level.generating += 1
        level.max_drafts += continuation.max_drafts
        self._is_exhausted = False
        return Beam(continuation=continuation, sampling=sampling)

    def cancel_beam(self, beam: Beam) -> None:
        """Remove a beam whose step was cancelled. Does nothing to a finished beam."""
        level = self._levels.get(beam.continuation.key)
        if beam.path is None and level is not None:
            level.generating -= 1
            level.max_drafts -= beam.continuation.max_drafts

    def finish_beam(self, beam: Beam, path: TokenIds, *, ends_path: bool) -> Draft | None:
        """Note that the step has ended, so that its slot is free. Returns the paused, empty draft
        of child 0, which may continue from the beam's KV, or None where nothing can be drafted."""
        level = self._levels.get(beam.continuation.key)
        if level is None or beam.path is not None:
            return None
        beam.path, beam.order = path, self._num_finished
        self._num_finished += 1
        level.generating -= 1
        level.finished += 1
        twin = level.drafts.get((path, beam.continuation.seeds[0])) if beam.next_children else None
        is_double = twin is not None and twin.is_open  # the beam was requested twice
        if ends_path or not beam.next_children or is_double:
            level.max_drafts -= beam.continuation.max_drafts
            return None
        level.beams.append(beam)
        self._is_exhausted = False
        return level.add(beam, beam.draft(0))

    # ------------------------------------------------------------ drafts

    @property
    def running(self) -> tuple[Draft, ...]:
        return tuple(self._running)

    def plan(self, view: BatchView) -> DraftPlan:
        """Fill the free slots, and pause what has to leave. Certain drafts take any place, and
        before others. Otherwise a running draft is not displaced by a better candidate."""
        waiting = self._find_waiting()
        if not waiting and not self._running:
            return DraftPlan()
        levels = waiting.values()
        finished = sum(level.finished for level in levels)
        slots = count_slots(
            view,
            finished,
            len(self._running),
            beams=(finished + sum(level.generating for level in levels)) / max(1, len(levels)),
            max_drafts=sum(level.max_drafts for level in levels),
        )
        certain = sum(beam.num_wanted for level in levels for beam in level.certain)
        slots = max(slots, min(certain, count_places(view, len(self._running))))
        stay = [draft for draft in self._running if draft.continuation.key in waiting]
        guesses = [draft for draft in stay if not draft.is_certain]
        others = max(0, slots - certain)
        if len(guesses) > others:
            stay = [draft for draft in stay if draft.is_certain]
            stay += nsmallest(others, guesses, key=lambda draft: draft.rank)
        if len(stay) > slots:
            stay = nsmallest(slots, stay, key=lambda draft: draft.rank)
        staying = set(stay)
        pause = tuple(draft for draft in self._running if draft not in staying)
        for draft in pause:
            self.pause(draft)
        return DraftPlan(pause=pause, run=self._start_drafts(levels, slots - len(stay)))

    def pause(self, draft: Draft) -> None:
        draft.move(_S.PAUSED)
        del self._running[draft]
        self._is_exhausted = False

    def append(
        self, draft: Draft, token: int, logprob: float, finish: FinishReason | None = None
    ) -> None:
        """Add a token to a draft that runs, or that was paused while the token was drawn. finish:
        why this token is the last of its step; None if it is not."""
        draft.token_ids.append(token)
        draft.logprobs.append(logprob)
        run = draft.continuation.run
        self._drawn[run] = self._drawn.get(run, 0) + 1
        self._certain[run] = self._certain.get(run, 0) + draft.is_certain
        if finish is not None:
            draft.finish = finish
            draft.move(_S.COMPLETE)
            self._running.pop(draft, None)

    def list_complete(self, run: str) -> tuple[Draft, ...]:
        """The drafts of a run whose steps have ended and whose requests have not arrived."""
        drafts = (draft for level in self._list_levels(run) for draft in level.drafts.values())
        return tuple(draft for draft in drafts if draft.state is _S.COMPLETE)

    def adopt(
        self, continuation: Continuation, path: TokenIds, seed: int, sampling: Sampling
    ) -> Draft | None:
        """Take the draft with the path, seed and sampling of a requested step, if there is one."""
        for level in self._list_levels(continuation.run):
            draft = level.drafts.get((path, seed))
            if draft is not None and draft.is_open and draft.sampling == sampling:
                self._close(draft, _S.ADOPTED)
                return draft
        return None

    # ------------------------------------------------------------ levels and runs

    def commit(self, run: str, level: int, children: Mapping[int, int]) -> None:
        """The search will certainly request the first children of some finished beams. children:
        their numbers by the seeds of child 0."""
        if (found := self._levels.get((run, level))) is None:
            return
        for beam in found.beams:
            seeds = beam.continuation.seeds
            beam.num_certain = max(beam.num_certain, min(len(seeds), children.get(seeds[0], 0)))
            for draft in beam.drafts[: beam.num_certain]:
                draft.is_certain = True
        found.certain = [beam for beam in found.beams if beam.num_certain]
        self._is_exhausted = False

    def drop_unused(
        self, run: str, levels: Collection[int], seeds: Collection[int]
    ) -> tuple[Draft, ...]:
        """The search has chosen what follows these levels of the run: children with `seeds`. Drop
        the drafts that have other seeds, and forget the levels that were decided before, with all
        their drafts. Returns the dropped drafts."""
        dropped: list[Draft] = []
        for number in [n for owner, n in self._levels if owner == run]:
            level = self._levels[run, number]
            if level.is_decided:
                dropped += self._drop(level.drafts.values())
                del self._levels[run, number]
            elif number in levels:
                level.is_decided = True
                dropped += self._drop(d for d in level.drafts.values() if d.seed not in seeds)
        return tuple(dropped)

    def end_run(self, run: str) -> tuple[Draft, ...]:
        """Forget a run and drop its drafts. Returns the dropped ones."""
        levels = self._list_levels(run)
        self._levels = {key: level for key, level in self._levels.items() if key[0] != run}
        self._drawn.pop(run, None)
        self._certain.pop(run, None)
        return self._drop(draft for level in levels for draft in level.drafts.values())

    def count_drawn(self, run: str) -> tuple[int, int]:
        """(draft tokens drawn for a run so far, used or not; those of certain children)."""
        return self._drawn.get(run, 0), self._certain.get(run, 0)

    def clear(self) -> None:
        """Drop all drafts after the engine died. The counts of drawn tokens stay."""
        for level in self._levels.values():
            self._drop(level.drafts.values())
        self._levels.clear()

    def _list_levels(self, run: str) -> list[_BoardLevel]:
        return [level for (owner, _), level in self._levels.items() if owner == run]

    def _find_waiting(self) -> dict[tuple[str, int], _BoardLevel]:
        """The levels whose finished beams wait for others, of the same level or an earlier one."""
        slowest: dict[str, int] = {}
        for (run, number), level in self._levels.items():
            if level.generating:
                slowest[run] = min(number, slowest.get(run, number))
        return {
            (run, number): level
            for (run, number), level in self._levels.items()
            if level.finished and not level.is_decided and slowest.get(run, number + 1) <= number
        }

    def _start_drafts(self, waiting: Iterable[_BoardLevel], slots: int) -> tuple[Draft, ...]:
        if slots <= 0 or self._is_exhausted:
            return ()
        candidates = self._list_candidates(waiting, slots)
        best = nsmallest(slots, candidates, key=lambda candidate: candidate[2].rank)
        self._is_exhausted = len(best) < slots
        for level, beam, draft in best:
            if draft.child == len(beam.drafts):
                level.add(beam, draft)
            draft.move(_S.RUNNING)
            self._running[draft] = None
        return tuple(draft for _, _, draft in best)

    def _list_candidates(
        self, waiting: Iterable[_BoardLevel], slots: int
    ) -> Iterator[tuple[_BoardLevel, Beam, Draft]]:
        """Yield the paused drafts, and for each beam new drafts of its next children."""
        for level in waiting:
            for beam in level.beams:
                for draft in beam.drafts:
                    if draft.state is _S.PAUSED:
                        yield level, beam, draft
                for child in beam.next_children[:slots]:
                    yield level, beam, beam.draft(child)

    def _drop(self, drafts: Iterable[Draft]) -> tuple[Draft, ...]:
        dropped = tuple(draft for draft in drafts if draft.is_open)
        for draft in dropped:
            self._close(draft, _S.DROPPED)
        return dropped

    def _close(self, draft: Draft, state: DraftState) -> None:
        self._running.pop(draft, None)
        draft.move(state)
