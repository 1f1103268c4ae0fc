"""Which searches draw their next group of paths ahead, as the programs beside them allow.

What is drawn ahead never holds a program back: admission does not count it, and where a program
that starts needs its room, it is dropped, the latest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flashedge.scheduling.programs.admission import Capacity, Need, predict_need
from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.speculation.next_group import GoingOn, NextGroup, is_worthwhile

NOTHING = Need(kv_tokens=0, sequences=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAhead:
    """A group that is drawn ahead."""

    program: str
    now: int
    """Paths of the group that the search draws meanwhile."""

    paths: int
    drop: Callable[[], None]
    """Stops drawing it."""

    def count_more(self, program: Program) -> int:
        """Sequences beyond those for which the program was admitted: its largest group."""
        return max(0, self.now + self.paths - program.sequences)


class RoomAhead:
    """Grants room for groups, as long as the device has it."""

    def __init__(self, programs: Callable[[], Sequence[Program]]) -> None:
        """programs: all that run or wait."""
        self._list_programs = programs
        self._capacity: Capacity | None = None
        self._groups: list[GroupAhead] = []
        self.going_on = GoingOn()

    def set_capacity(self, capacity: Capacity | None) -> None:
        """What the engines have room for. None: that is not known, so nothing is granted."""
        self._capacity = capacity

    def ask(self, group: GroupAhead) -> bool:
        """Whether the group may be drawn ahead; if so, it holds its room until `release`."""
        capacity, programs = self._capacity, {p.key: p for p in self._list_programs()}
        own = programs.pop(group.program, None)
        if own is None or capacity is None or capacity.step_s is None:
            return False
        beside = sum(p.sequences for p in programs.values() if p.started_s is not None)
        beside += sum(
            other.count_more(programs[other.program])
            for other in self._groups
            if other.program in programs
        )
        following = NextGroup(now=group.now, paths=group.paths, chance=self.going_on.chance)
        if beside + group.now + group.paths > capacity.useful_sequences or not is_worthwhile(
            following, beside, 1 + len(programs), capacity.step_s
        ):
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
        """A program has started: drop what no longer fits beside all that run."""
        while self._groups and not self._fits():
            self._groups.pop().drop()

    def _fits(self) -> bool:
        """Whether the KV holds what the running programs need and all that is drawn ahead."""
        if self._capacity is None:
            return True
        programs = {p.key: p for p in self._list_programs()}
        running = [predict_need(p) for p in programs.values() if p.started_s is not None]
        ahead = [
            predict_need(replace(program, outputs=more, width=None, prompt_tokens=0))
            for group in self._groups
            if (program := programs.get(group.program)) is not None
            and (more := group.count_more(program))
        ]
        return sum((*running, *ahead), NOTHING).kv_tokens <= self._capacity.kv_tokens
