"""The state of an engine's speculation: its beams, their drafts, and which drafts run next.

An engine's scheduler reports what happens and asks which drafts to run. The board knows neither KV
nor a clock, so the simulator and vLLM's scheduler share this class.

    beam, draft = board.add_beam(...)                  a step is requested: go on from its draft
    board.finish_beam(beam, path, ends_path=...)       it ends: what follows it may be drafted
    plan = board.plan(view)                            before each engine step
    board.append(draft, token, logprob, finish)        a running draft drew a token
    board.commit(run, level, children)                 these children will certainly be requested
    board.drop_unused(run, levels, seeds)              what follows is known: forget the rest
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest

from flashedge.scheduling.speculation.draft_choice import (
    CERTAIN,
    BatchView,
    DraftGains,
    RequestRates,
    count_places,
)
from flashedge.scheduling.speculation.drafts import Beam, Continuation, Draft, DraftState
from flashedge.types import FinishReason, Sampling, TokenIds

_S = DraftState


@dataclass(slots=True, eq=False)
class _BoardLevel:
    """The beams and drafts of one level of a run."""

    generating: int = 0
    """Beams whose step is being generated."""
    beams: dict[TokenIds, Beam] = field(default_factory=dict)
    """Finished beams that may have children, by path. A search keeps one of equal paths at most."""
    ended: list[Beam] = field(default_factory=list)
    """All whose step has ended."""
    ended_at: int = 0
    """The engine's steps when the last of them had ended."""
    possible: list[tuple[float, int]] = field(default_factory=list)
    """What might have been drafted of this level. See `DraftGains.note`."""
    is_decided: bool = False
    """Whether the search has chosen what follows, so that no beam waits any more."""

    def list_drafts(self) -> list[Draft]:
        return [draft for beam in self.beams.values() for draft in beam.drafts]


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
        self._drawn: dict[str, tuple[int, int]] = {}
        """By run, see `count_drawn`."""
        self._rates, self._gains = RequestRates(), DraftGains()
        self._steps = 0
        """Of the engine so far."""
        self._num_finished = 0
        """Beams that have finished so far, of all runs."""
        self._exhausted: dict[tuple[str, int], float] | None = None
        """The least chances with which no further candidate was found. None if there was one, or
        something has changed since."""
        self.has_news = False
        """Whether more may have become certain since the last plan, so that a step is due even if
        the engine has no request."""

    # ------------------------------------------------------------ beams

    def add_beam(
        self, continuation: Continuation, path: TokenIds, seed: int, sampling: Sampling
    ) -> tuple[Beam, Draft | None]:
        """Note that a step is requested. Returns it, and the draft that it adopts, if there is one
        with its path, seed and sampling."""
        beam = Beam(
            continuation=continuation, sampling=sampling, start=len(path), began_at=self._steps
        )
        found, before = None, self._list_levels(continuation.run)
        level = self._levels.setdefault(continuation.key, _BoardLevel())
        level.generating += 1
        for last in before:
            if (parent := last.beams.get(path)) is None:
                continue
            if not level.possible:
                level.possible = self._list_possible(last)
            beam.ahead = max(0, last.ended_at - parent.ended_at)
            beam.chance = parent.child_chances.get(seed, 0.0)
            for draft in parent.drafts:
                if draft.seed == seed and draft.is_open and parent.sampling == sampling:
                    self._close(draft, _S.ADOPTED)
                    self._rates.note(draft.kind, is_requested=True)
                    beam.adopted, found = len(draft.token_ids), draft
        self._exhausted = None
        return beam, found

    def _list_possible(self, level: _BoardLevel) -> list[tuple[float, int]]:
        """List what might have been drafted after a level, and note it in the level's beams."""
        found = []
        for beam in level.beams.values():
            after, ahead = beam.continuation, max(0, level.ended_at - beam.ended_at)
            drafts = [*beam.drafts, *(beam.draft(n, self._rates) for n in beam.next_children)]
            beam.child_chances = {after.seeds[draft.child]: draft.chance for draft in drafts}
            found += [(draft.chance, ahead) for draft in drafts]
        return found

    def cancel_beam(self, beam: Beam) -> None:
        """Remove a beam whose step was cancelled. Does nothing to a finished beam."""
        level = self._levels.get(beam.continuation.key)
        if not beam.path and level is not None:
            self._end_beam(level)

    def finish_beam(self, beam: Beam, path: TokenIds, *, ends_path: bool) -> Draft | None:
        """Note that the step has ended. Returns the paused, empty draft of child 0, which may
        continue from the beam's KV, or None where nothing can be drafted."""
        level = self._levels.get(beam.continuation.key)
        if level is None or beam.path:
            return None
        beam.path, beam.order, beam.ended_at = path, self._num_finished, self._steps
        self._num_finished += 1
        level.ended.append(beam)
        self._end_beam(level)
        if ends_path or not beam.next_children:
            return None
        twin = level.beams.get(path)
        if twin is not None and any(draft.is_open for draft in twin.drafts):
            return None  # one of equal paths is drafted
        level.beams[path] = beam
        self._exhausted = None
        draft = beam.draft(0, self._rates)
        beam.drafts.append(draft)
        return draft

    def _end_beam(self, level: _BoardLevel) -> None:
        level.generating -= 1
        level.ended_at = self._steps

    def _count_level(self, level: _BoardLevel) -> None:
        """Count what drafts would have gained in a level whose steps have all ended."""
        taken = sum(beam.ended_at - beam.began_at for beam in level.ended)
        if not (level.possible and taken):
            return
        lengths = [len(beam.path) - beam.start for beam in level.ended]
        speed = (sum(lengths) - sum(beam.adopted for beam in level.ended)) / taken
        if speed > 0:
            found = [
                (beam.chance, beam.ahead, length / speed)
                for beam, length in zip(level.ended, lengths, strict=True)
            ]
            self._gains.note(found, level.possible)

    # ------------------------------------------------------------ drafts

    @property
    def running(self) -> tuple[Draft, ...]:
        return tuple(self._running)

    def plan(self, view: BatchView) -> DraftPlan:
        """Choose the drafts of the next step: the likeliest, as far as there are places for them,
        and they are likely enough."""
        self._steps += 1
        self.has_news = False
        waiting = self._find_waiting()
        if not waiting and not self._running:
            return DraftPlan()
        places, least = count_places(view, len(self._running)), self._choose_least(view, waiting)
        candidates = list(self._running)
        if places and self._exhausted != least:
            candidates += self._list_candidates(waiting.values(), places)
        worthy = (
            draft
            for draft in candidates
            if draft.chance >= least.get(draft.continuation.key, float("inf"))
        )
        best = nsmallest(places, worthy, key=lambda draft: draft.rank)
        self._exhausted = least if places > len(best) else None
        kept = set(best)
        pause = tuple(draft for draft in self._running if draft not in kept)
        run = tuple(draft for draft in best if draft not in self._running)
        for draft in pause:
            self.pause(draft)
        for draft in run:
            if draft.child == len(draft.beam.drafts):
                draft.beam.drafts.append(draft)
            draft.move(_S.RUNNING)
            self._running[draft] = None
        return DraftPlan(pause=pause, run=run)

    def _choose_least(
        self, view: BatchView, waiting: Mapping[tuple[str, int], _BoardLevel]
    ) -> dict[tuple[str, int], float]:
        """Choose for each waiting level how likely a child has to be for a draft."""
        slowest: dict[str, int] = {}
        for (run, number), level in self._levels.items():
            if level.generating:
                slowest[run] = min(number, slowest.get(run, number))
        generating = sum(level.generating for level in self._levels.values())
        # Each request of no search counts as a run.
        runs = len(slowest) + max(0, view.running - generating)

        def choose(run: str, number: int, level: _BoardLevel) -> float:
            if slowest.get(run, number + 1) > number:
                return CERTAIN  # it waits for scores alone: the verifier may share the device
            width = level.generating + len(level.ended)
            branching = max(len(beam.continuation.seeds) for beam in level.beams.values())
            return self._gains.choose_least_chance(view, width, runs, branching)

        return {key: choose(*key, level) for key, level in waiting.items()}

    def pause(self, draft: Draft) -> None:
        draft.move(_S.PAUSED)
        del self._running[draft]
        self._exhausted = None

    def append(
        self, draft: Draft, token: int, logprob: float, finish: FinishReason | None = None
    ) -> None:
        """Add a token to a draft that runs, or that was paused while the token was drawn. finish:
        why this token is the last of its step; None if it is not."""
        draft.token_ids.append(token)
        draft.logprobs.append(logprob)
        run = draft.continuation.run
        drawn, certain = self.count_drawn(run)
        self._drawn[run] = drawn + 1, certain + draft.is_certain
        if finish is not None:
            draft.finish = finish
            draft.move(_S.COMPLETE)
            self._running.pop(draft, None)

    def list_complete(self, run: str) -> tuple[Draft, ...]:
        """The drafts of a run whose steps have ended and whose requests have not arrived."""
        drafts = (draft for level in self._list_levels(run) for draft in level.list_drafts())
        return tuple(draft for draft in drafts if draft.state is _S.COMPLETE)

    # ------------------------------------------------------------ levels and runs

    def commit(self, run: str, level: int, children: Mapping[int, int]) -> None:
        """The search will certainly request the first children of some finished beams. children:
        their numbers by the seeds of child 0."""
        if (found := self._levels.get((run, level))) is None:
            return
        for beam in found.beams.values():
            seeds = beam.continuation.seeds
            beam.num_certain = max(beam.num_certain, min(len(seeds), children.get(seeds[0], 0)))
            for draft in beam.drafts[: beam.num_certain]:
                draft.chance = CERTAIN
        self._exhausted = None
        self.has_news |= any(beam.num_certain for beam in found.beams.values())

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
                dropped += self._drop(level.list_drafts())
                del self._levels[run, number]
            elif number in levels:
                level.is_decided = True
                self._count_level(level)
                unused = self._drop(d for d in level.list_drafts() if d.seed not in seeds)
                for draft in unused:
                    self._rates.note(draft.kind, is_requested=False)
                dropped += unused
        return tuple(dropped)

    def end_run(self, run: str) -> tuple[Draft, ...]:
        """Forget a run and drop its drafts. Returns the dropped ones. Whether they would have been
        requested is not known: the run may have been cut."""
        levels = self._list_levels(run)
        self._levels = {key: level for key, level in self._levels.items() if key[0] != run}
        self._drawn.pop(run, None)
        return self._drop(draft for level in levels for draft in level.list_drafts())

    def count_drawn(self, run: str) -> tuple[int, int]:
        """(draft tokens drawn for a run so far, used or not; those of certain children)."""
        return self._drawn.get(run, (0, 0))

    def clear(self) -> None:
        """Drop all drafts after the engine died. The counts of drawn tokens stay."""
        for level in self._levels.values():
            self._drop(level.list_drafts())
        self._levels.clear()

    def _list_levels(self, run: str) -> list[_BoardLevel]:
        return [level for (owner, _), level in self._levels.items() if owner == run]

    def _find_waiting(self) -> dict[tuple[str, int], _BoardLevel]:
        """The levels whose finished beams wait for others, or for scores."""
        return {
            k: level for k, level in self._levels.items() if level.beams and not level.is_decided
        }

    def _list_candidates(self, waiting: Iterable[_BoardLevel], most: int) -> Iterator[Draft]:
        """Yield the paused drafts, and for each beam new drafts of its next children."""
        for beam in (beam for level in waiting for beam in level.beams.values()):
            yield from (draft for draft in beam.drafts if draft.state is _S.PAUSED)
            yield from (beam.draft(child, self._rates) for child in beam.next_children[:most])

    def _drop(self, drafts: Iterable[Draft]) -> tuple[Draft, ...]:
        dropped = tuple(draft for draft in drafts if draft.is_open)
        for draft in dropped:
            self._close(draft, _S.DROPPED)
        return dropped

    def _close(self, draft: Draft, state: DraftState) -> None:
        self._running.pop(draft, None)
        draft.move(state)
