"""What makes up each program: its open runs and plain requests.

A member is described as a `Program` of its own, and a program is what its open members do together.
So a program shrinks when one of them ends, and admission can ask what one run needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flashedge.scheduling.programs.program import Program
from flashedge.types import TokenIds


class Members:
    """The members of all programs, by their ids. Has no clock and no order."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Program]] = {}
        """By program, in the order of their arrival."""
        self._keys: dict[str, str] = {}
        """The program of each member."""
        self._prompts: dict[str, TokenIds] = {}

    def add(self, member: str, work: Program, prompt_ids: TokenIds = ()) -> None:
        """work.key: the program that it joins."""
        shared = max((count_shared(prompt_ids, p) for p in self._prompts.values()), default=0)
        work = replace(work, shared_tokens=shared)
        self._members.setdefault(work.key, {})[member] = work
        self._keys[member], self._prompts[member] = work.key, prompt_ids

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
        work = self.get(member)
        if work is not None:
            self._members[work.key][member] = replace(work, **changes)

    def remove(self, member: str) -> None:
        """The member is over. Again, this does nothing."""
        key = self._keys.pop(member, None)
        if key is not None:
            del self._members[key][member], self._prompts[member]
            if not self._members[key]:
                del self._members[key]

    def list(self, key: str) -> Sequence[Program]:
        """What the open members of a program do."""
        return tuple(self._members.get(key, {}).values())

    def combine(self, key: str) -> Program | None:
        """The program as a whole. None without open members."""
        members = self.list(key)
        return combine(members) if members else None


def combine(members: Sequence[Program]) -> Program:
    """What several members of one program do together. It is their first one's otherwise."""
    first = members[0]
    if len(members) == 1:
        return first
    outputs = sum(member.outputs for member in members)
    return replace(
        first,
        outputs=outputs,
        width=sum(member.sequences for member in members),
        max_tokens=max(member.max_tokens for member in members),
        prompt_tokens=sum(member.prompt_tokens for member in members),
        shared_tokens=sum(member.shared_tokens for member in members),
        lengths=next((m.lengths for m in reversed(members) if m.lengths is not None), None),
        drawn_tokens=sum(member.drawn_tokens for member in members),
        progress=sum(m.outputs * m.progress for m in members) / max(1, outputs),
    )


def count_shared(left: TokenIds, right: TokenIds) -> int:
    """Tokens that both begin with."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
