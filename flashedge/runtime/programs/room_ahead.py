"""Which searches draw their next group of paths ahead, as the programs beside them allow.

What is drawn ahead is not counted in admission. Where a run that starts, or a plain request that
arrives, needs its room, it is dropped, the latest group first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flashedge.scheduling.programs.admission import Capacity, Need, predict_need
from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.speculation.next_group import ContinuationRate, NextGroup, is_worthwhile

NOTHING = Need(kv_tokens=0, sequences=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAhead:
    """A group that one run draws ahead."""

    program: str

    width: int
    """Paths for which the run was admitted: those of its largest group."""

    now: int
    """Paths of the group that the run draws meanwhile."""

    paths: int

    drop: Callable[[], None]
    """Stops drawing it."""

    @property
    def extra(self) -> int:
        """Sequences beyond those for which the run was admitted."""
        return max(0, self.now + self.paths - self.width)


class RoomAhead:
    """Keeps room for groups, as long as the device has it."""

    def __init__(self, programs: Callable[[], Sequence[Program]]) -> None:
        """programs: all that run or wait."""
        self._list_programs = programs
        self._capacity: Capacity | None = None
        self._groups: list[GroupAhead] = []
        self.continuations = ContinuationRate()

    def set_capacity(self, capacity: Capacity | None) -> None:
        """What the engines have room for. None: that is not known, so nothing is drawn ahead."""
        self._capacity = capacity

    def reserve(self, group: GroupAhead) -> bool:
        """Keep room for a group until `release`. False where it may not be drawn ahead."""
        capacity, programs = self._capacity, self._list_programs()
        own = next((p for p in programs if p.key == group.program), None)
        if own is None or capacity is None or capacity.step_s is None:
            return False
        beside = sum(p.sequences for p in programs if p.started_s is not None or p is own)
        beside += sum(other.extra for other in self._groups) - group.width
        siblings = max(0, own.sequences // group.width - 1)  # other runs of the program
        following = NextGroup(now=group.now, paths=group.paths, chance=self.continuations.chance)
        served = len(programs) + siblings
        if not is_worthwhile(following, max(0, beside), served, capacity.step_s):
            return False
        self._groups.append(group)
        if self._fits(group.program):
            return True
        self._groups.remove(group)
        return False

    def release(self, group: GroupAhead) -> None:
        """The group is part of the search now, or is not drawn any more."""
        if group in self._groups:
            self._groups.remove(group)

    def make_room(self, program: str) -> None:
        """This program is about to be served: drop what no longer fits."""
        while self._groups and not self._fits(program):
            self._groups.pop().drop()

    def _fits(self, program: str) -> bool:
        """Whether batch and KV hold what runs, this program, and all that is drawn ahead."""
        if self._capacity is None:
            return True
        programs = {p.key: p for p in self._list_programs()}
        served = [p for p in programs.values() if p.started_s is not None or p.key == program]
        ahead = [
            replace(p, outputs=group.extra, width=None, prompt_tokens=0)
            for group in self._groups
            if group.extra and (p := programs.get(group.program)) is not None
        ]
        need = sum((predict_need(p) for p in (*served, *ahead)), NOTHING)
        return (
            need.kv_tokens <= self._capacity.kv_tokens
            and need.sequences <= self._capacity.useful_sequences
        )
