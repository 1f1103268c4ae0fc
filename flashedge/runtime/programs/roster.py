"""The programs that are here, and their members: whatever a member does changes its program.

A program begins with its first member and is over when the last one has left. If another one comes
within `RETURNS_S`, as of an agent that asks one question after another, it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flashedge.runtime.programs.members import Members
from flashedge.scheduling.programs.board import ProgramBoard
from flashedge.scheduling.programs.program import Program
from flashedge.types import TokenIds

RETURNS_S = 60.0
"""An agent thinks for so long between two questions, at most."""
COMBINED = (
    *("outputs", "width", "max_tokens", "prompt_tokens", "shared_tokens"),
    *("lengths", "drawn_tokens", "progress"),
)
"""What a program has of its members. The rest is its own."""


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
        self._left: dict[str, tuple[float, Program]] = {}
        """Programs whose last member has left, and when."""

    def get(self, member: str) -> Program | None:
        """What one member does. None for one that is over."""
        return self._members.get(member)

    def find_program(self, member: str) -> str | None:
        """The key of its program. None for one that is over."""
        return self._members.find_program(member)

    def list_served(self) -> list[Program]:
        """All programs, with those as started of which the engines have a member."""
        return [
            replace(program, started_s=program.arrived_s)
            if any(member.started_s is not None for member in self._members.list(program.key))
            else program
            for program in self._board.programs
        ]

    def join(self, member: str, work: Program, prompt_ids: TokenIds) -> None:
        """Add a member. work: see `Members`; work.started_s: since when the engines have it."""
        self._members.add(member, work, prompt_ids)
        if work.key not in self._board:
            self._board.add(self._recall(replace(work, started_s=None)))
        self._combine(work.key)

    def leave(self, member: str) -> None:
        """A member is over. Again, this does nothing."""
        key = self._members.find_program(member)
        if key is None:
            return
        self._members.remove(member)
        program = self._board.get(key)
        if not self._members.list(key) and program is not None:
            self._left[key] = self._clock(), program
            self._board.remove(key)
        self._combine(key)

    def change(self, member: str, **changes: object) -> None:
        """Change what a member does. Nothing changes for one that is over."""
        key = self._members.find_program(member)
        if key is not None:
            self._members.change(member, **changes)
            self._combine(key)

    def note_tokens(self, member: str, tokens: int) -> None:
        """A member has drawn so many more tokens."""
        work = self._members.get(member)
        if work is not None:
            self._board.update(work.key, served_s=self._clock())
            self.change(member, drawn_tokens=work.drawn_tokens + tokens)

    def mark_started(self, key: str) -> float | None:
        """A member of the program runs. Returns how long it waited if it is the first one."""
        program, now_s = self._board.get(key), self._clock()
        if program is None or program.started_s is not None:
            return None
        self._board.update(key, started_s=now_s)
        self._on_change()
        return now_s - program.arrived_s

    def _recall(self, program: Program) -> Program:
        """The program as it was, if it has left a short while ago."""
        now_s = self._clock()
        self._left = {k: v for k, v in self._left.items() if now_s - v[0] <= RETURNS_S}
        if program.key not in self._left:
            return program
        _, before = self._left.pop(program.key)
        return replace(
            program, arrived_s=before.arrived_s, started_s=before.started_s, served_s=now_s
        )

    def _combine(self, key: str) -> None:
        """Bring the board up to what the members of a program do now."""
        whole = self._members.combine(key)
        if whole is not None:
            self._board.update(key, **{name: getattr(whole, name) for name in COMBINED})
        self._on_change()
