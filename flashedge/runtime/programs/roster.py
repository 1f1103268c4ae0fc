"""The programs that are here, and their members: whatever a member does changes its program.

A program begins with its first member and is over when the last one has left. If another one comes
within `RETURNS_S`, as of an agent that asks one question after another, it counts as under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashedge.runtime.programs.members import Members, combine
from flashedge.scheduling.programs.board import ProgramBoard
from flashedge.scheduling.programs.program import Program

RETURNS_S = 60.0
"""An agent thinks for so long between two questions, at most."""


class Roster:
    """Keeps the board of programs in step with their members."""

    def __init__(
        self, board: ProgramBoard, clock: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        """on_change: called whenever a program changes."""
        self._board = board
        self._clock = clock
        self._on_change = on_change
        self._members = Members()
        self._left_s: dict[str, float] = {}
        """When the last member of a program that had started has left."""

    def get(self, member: str) -> Program | None:
        """What one member does. None for one that is over."""
        return self._members.get(member)

    def find_program(self, member: str) -> str | None:
        """The key of its program. None for one that is over."""
        return self._members.find_program(member)

    def list_members(self) -> Sequence[Program]:
        """What each member does, under its program's key."""
        return self._members.list_all()

    def join(self, member: str, program: Program) -> None:
        """Add a member. program: see `Members`; program.started_s: since when the engines have
        it."""
        key = program.key
        self._members.add(member, program)
        if key in self._board:
            self._combine(key)
            return
        new = replace(program, started_s=None, is_resumed=self._has_returned(key))
        self._board.add(new, self._members.combine_works(key))
        self._on_change()

    def leave(self, member: str) -> None:
        """A member is over. Again, this does nothing."""
        key = self._members.find_program(member)
        if key is None:
            return
        self._members.remove(member)
        if self._members.list(key):
            self._combine(key)
            return
        program = self._board.get(key)
        if program is not None and program.is_under_way:
            self._left_s[key] = self._clock()
        self._board.remove(key)
        self._on_change()

    def change(self, member: str, **changes: object) -> None:
        """Change what a member does. Nothing changes for one that is over."""
        key = self._members.find_program(member)
        if key is not None:
            self._members.change(member, **changes)
            self._combine(key)

    def note_tokens(self, member: str, tokens: int) -> None:
        """A member has drawn so many more tokens."""
        own = self._members.get(member)
        whole = None if own is None else self._board.get(own.key)
        if own is None or whole is None:
            return
        self._members.change(member, drawn_tokens=own.drawn_tokens + tokens)
        self._board.update(
            own.key,
            self._members.combine_works(own.key),
            drawn_tokens=whole.drawn_tokens + tokens,
            served_s=self._clock(),
        )
        self._on_change()

    def note_service(self, member: str) -> None:
        """The engines go on with a member, though what it draws is counted later."""
        key = self._members.find_program(member)
        if key is not None:
            self._board.note_service(key, self._clock())

    def mark_started(self, key: str) -> float | None:
        """A member of the program runs. Returns how long it waited if it is the first one."""
        program, now_s = self._board.get(key), self._clock()
        if program is None or program.started_s is not None:
            return None
        self._board.note_start(key, now_s)
        self._on_change()
        return now_s - program.arrived_s

    def _has_returned(self, key: str) -> bool:
        """Whether a program has left a short while ago."""
        now_s = self._clock()
        self._left_s = {k: s for k, s in self._left_s.items() if now_s - s <= RETURNS_S}
        return self._left_s.pop(key, None) is not None

    def _combine(self, key: str) -> None:
        """Bring the board up to what the members of a program do now."""
        changes = combine(self._members.list(key))
        self._board.update(key, self._members.combine_works(key), **changes)
        self._on_change()
