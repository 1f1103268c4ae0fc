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

    def __init__(self, members: Callable[[], Sequence[Program]]) -> None:
        """members: all runs and plain requests, under their programs' keys. Those that the engines
        have are started."""
        self._list_members = members
        self._capacity: Capacity | None = None
        self._groups: list[GroupAhead] = []
        self.continuations = ContinuationRate()

    def set_capacity(self, capacity: Capacity | None) -> None:
        """What the engines have room for. None: that is not known, so nothing is drawn ahead."""
        self._capacity = capacity

    def reserve(self, group: GroupAhead) -> bool:
        """Keep room for a group until `release`. False where it may not be drawn ahead."""
        capacity, members = self._capacity, self._list_members()
        is_here = any(m.key == group.program and m.started_s is not None for m in members)
        if not is_here or capacity is None or capacity.step_s is None or capacity.is_assumed:
            return False
        beside = sum(m.sequences for m in members if m.started_s is not None)
        beside += sum(other.extra for other in self._groups) - group.width
        following = NextGroup(now=group.now, paths=group.paths, chance=self.continuations.chance)
        if not is_worthwhile(following, max(0, beside), len(members), capacity.step_s):
            return False
        self._groups.append(group)
        if self._fits():
            return True
        self._groups.remove(group)
        return False

    def release(self, group: GroupAhead) -> None:
        """The group is part of the search now, or is not drawn any more."""
        if group in self._groups:
            self._groups.remove(group)

    def make_room(self) -> None:
        """The engines have another member: drop what no longer fits."""
        while self._groups and not self._fits():
            self._groups.pop().drop()

    def _fits(self) -> bool:
        """Whether batch and KV hold what the engines have, and all that is drawn ahead."""
        if self._capacity is None:
            return True
        served = [m for m in self._list_members() if m.started_s is not None]
        by_program = {m.key: m for m in served}
        ahead = [
            replace(m, outputs=group.extra, width=None, prompt_tokens=0)
            for group in self._groups
            if group.extra and (m := by_program.get(group.program)) is not None
        ]
        need = sum((predict_need(m) for m in (*served, *ahead)), NOTHING)
        return (
            need.kv_tokens <= self._capacity.kv_tokens
            and need.sequences <= self._capacity.useful_sequences
        )
