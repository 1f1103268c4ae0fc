"""What makes up each program: its open runs and plain requests.

A member is described as a `Program` of its own, and a program is what its open members do together.
So a program shrinks when one of them ends, and admission can ask what one run needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flashedge.scheduling.programs.program import Kind, Program
from flashedge.scheduling.programs.work import Work, estimate_work

_URGENCY = {kind: at for at, kind in enumerate(Kind)}


class Members:
    """The members of all programs, by their ids. Has no clock and no order."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Program]] = {}
        """By program, in the order of their arrival."""
        self._works: dict[str, Work] = {}
        """What each member has left."""
        self._keys: dict[str, str] = {}
        """The program of each member."""

    def add(self, member: str, program: Program) -> None:
        """program: what the member does, under the key of the program that it joins."""
        self._keys[member] = program.key
        self._put(member, program)

    def get(self, member: str) -> Program | None:
        """What one member does. None for one that is over."""
        key = self._keys.get(member)
        return None if key is None else self._members[key][member]

    def find_program(self, member: str) -> str | None:
        """The key of its program. None for one that is over."""
        return self._keys.get(member)

    def change(self, member: str, **changes: Any) -> None:
        """Change what a member does. Nothing changes for one that is over: its last news may come
        late."""
        program = self.get(member)
        if program is not None:
            self._put(member, replace(program, **changes))

    def remove(self, member: str) -> None:
        """The member is over. Again, this does nothing."""
        key = self._keys.pop(member, None)
        if key is not None:
            del self._members[key][member], self._works[member]
            if not self._members[key]:
                del self._members[key]

    def list(self, key: str) -> Sequence[Program]:
        """What the open members of a program do."""
        return tuple(self._members.get(key, {}).values())

    def list_all(self) -> Sequence[Program]:
        """What all open members do."""
        return [program for members in self._members.values() for program in members.values()]

    def combine_works(self, key: str) -> Work:
        """What the open members of a program have left."""
        works = (self._works[member] for member in self._members[key])
        return sum(works, Work(expected=0.0, tail=0.0))

    def _put(self, member: str, program: Program) -> None:
        self._members.setdefault(program.key, {})[member] = program
        self._works[member] = estimate_work(program)


def combine(members: Sequence[Program]) -> dict[str, Any]:
    """What a program has of its open members, as fields of `Program`. The rest is its own.

    Their lengths differ: those predicted last stand for all, so ask `Members.combine_works` for the
    work that is left.
    """
    outputs = sum(member.outputs for member in members)
    return {
        "kind": min((member.kind for member in members), key=lambda kind: _URGENCY[kind]),
        "outputs": outputs,
        "width": sum(member.sequences for member in members),
        "max_tokens": max(member.max_tokens for member in members),
        "prompt_tokens": sum(member.prompt_tokens for member in members),
        "shared_tokens": sum(member.shared_tokens for member in members),
        "lengths": next((m.lengths for m in reversed(members) if m.lengths is not None), None),
        "drawn_tokens": sum(member.drawn_tokens for member in members),
        "progress": sum(m.outputs * m.progress for m in members) / max(1, outputs),
    }
