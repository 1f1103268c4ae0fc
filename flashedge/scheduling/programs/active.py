"""The active programs, and the one order that the queue and the engines follow.

The order:

1. programs that once got no token for too long (`Rules.escalate_after_s`), by arrival
2. chats, then searches, then batch work (`Kind`)
3. within a kind: programs that have started, if requests run as a gang (`Rules.is_gang`)
4. by the policy's score, then by arrival, then by key. For batch work the score is left out, since
   its results are read in the order of arrival.

Among programs that are equal by 2 and 3, clients take turns before 4 counts: the client that was
served the fewest tokens goes next, so that an agent with a hundred problems does not keep a person
with one problem waiting.

Ref: arXiv 2412.20993 App. D.3.1; arXiv 2604.00499 §4; the virtual token counter of arXiv
2401.00588, on whole programs.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from flashedge.scheduling.programs.policies import Policy, Queued
from flashedge.scheduling.programs.program import KIND_RANKS, Kind, Member, Program, Work

RETURNS_S = 60.0
"""A program counts as under way if its next member comes this soon after the last one has left, as
with an agent that asks one question after another. Chosen by hand: with 6 s an agent whose tool is
slow would queue again; with 600 s programs that are over would keep their rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    policy: Policy
    is_gang: bool = True
    """Whether programs that have started go first, so that a program's requests run together."""
    is_fair: bool = True
    """Whether clients take turns."""
    ranks_kinds: bool = True
    """Whether chats go before searches, and both before batch work."""
    escalate_after_s: float | None
    """A program that got no token for this long goes first until it is over (the setting
    scheduling_escalate_s). With None no program does."""


class ActivePrograms:
    """Keeps programs with their members, and orders them. Has no clock: times are arguments.
    Reports of a member that has left change nothing."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._programs: dict[str, Program] = {}
        self._program_of: dict[str, Program] = {}
        """By member."""
        self._served_tokens: dict[str, float] = {}
        """By client."""
        self._left_s: dict[str, float] = {}
        """By program that was under way: when its last member left."""

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, key: str) -> Program | None:
        return self._programs.get(key)

    def find_program(self, member: str) -> Program | None:
        return self._program_of.get(member)

    def find_member(self, member: str) -> Member | None:
        program = self._program_of.get(member)
        return None if program is None else program.members[member]

    def join(self, member: str, details: Member, key: str, client: str, now_s: float) -> None:
        """Add a member by its id to the program `key`, which begins with its first member. A
        client without a program starts with at least the fewest tokens served to another, so that
        nobody saves up service."""
        program = self._programs.get(key)
        if program is None:
            clients = {other.client for other in self._programs.values()}
            if client not in clients:
                least = min((self._served_tokens[name] for name in clients), default=0.0)
                self._served_tokens[client] = max(self._served_tokens.get(client, 0.0), least)
            self._left_s = {k: s for k, s in self._left_s.items() if now_s - s <= RETURNS_S}
            is_resumed = self._left_s.pop(key, None) is not None
            program = Program(key=key, client=client, arrived_s=now_s, is_resumed=is_resumed)
            self._programs[key] = program
        program.members[member] = details
        self._program_of[member] = program

    def leave(self, member: str, now_s: float) -> None:
        program = self._program_of.pop(member, None)
        if program is None:
            return
        del program.members[member]
        if program.members:
            return
        del self._programs[program.key]
        if program.is_under_way:
            self._left_s[program.key] = now_s
        if not self._programs:  # a client that comes next has nobody to take turns with
            self._served_tokens.clear()

    def change(self, member: str, **changes: Any) -> None:
        """changes: new values of the member's fields."""
        details = self.find_member(member)
        if details is not None:
            details.change(**changes)

    def note_tokens(self, member: str, tokens: int, now_s: float) -> None:
        """Note that the engines drew tokens of a member. tokens: 0 if they are counted later."""
        program = self._program_of.get(member)
        if program is not None:
            if tokens:
                details = program.members[member]
                details.change(drawn_tokens=details.drawn_tokens + tokens)
            program.served_s = now_s
            self._served_tokens[program.client] += tokens

    def note_start(self, key: str, now_s: float) -> float | None:
        """Note that a member of the program `key` runs. Returns the seconds that the program
        waited, if it had not started before."""
        program = self._programs.get(key)
        if program is None or program.started_s is not None:
            return None
        program.started_s = now_s
        return now_s - program.arrived_s

    def order(self, now_s: float, max_batch: int) -> list[Program]:
        """List all programs, the first to run first. Escalates those that have waited too long.
        max_batch: sequences that the generator computes at once."""
        programs = list(self._programs.values())
        limit = self.rules.escalate_after_s
        if limit is not None:
            for program in programs:
                # It stays escalated: one token a minute would starve it as well.
                program.is_escalated |= now_s - program.waits_since_s >= limit
        works = {program.key: program.work for program in programs}
        queued = Queued(
            expected=np.array([work.expected for work in works.values()]),
            tail=np.array([work.tail for work in works.values()]),
            waited_s=now_s - np.array([program.arrived_s for program in programs]),
            waiting=sum(program.sequences for program in programs if program.started_s is None),
            max_batch=max_batch,
        )
        scored = []
        for program, score in zip(programs, self.rules.policy.score(queued), strict=True):
            is_batch = self.rules.ranks_kinds and program.kind is Kind.BATCH
            scored.append((self._find_class(program), 0.0 if is_batch else score, program))
        scored.sort(key=lambda each: (*each[:2], each[2].arrived_s, each[2].key))
        if not self.rules.is_fair:
            return [program for _, _, program in scored]
        return [
            program
            for _, group in groupby(scored, key=lambda each: each[0])
            for program in self._take_turns([program for _, _, program in group], works)
        ]

    def _find_class(self, program: Program) -> tuple[int, float, int]:
        """The rank that counts before any score. The lowest goes first."""
        if program.is_escalated:
            return (0, program.arrived_s, 0)
        waits = self.rules.is_gang and not program.is_under_way
        return (1, KIND_RANKS[program.kind] if self.rules.ranks_kinds else 0, waits)

    def _take_turns(self, ordered: Sequence[Program], works: dict[str, Work]) -> Iterator[Program]:
        """Interleave clients by the tokens served to them, to which the expected work of each of
        their programs is added in turn. The programs of one client keep their order."""
        queues: dict[str, deque[Program]] = {}
        for program in ordered:
            queues.setdefault(program.client, deque()).append(program)
        served = {client: self._served_tokens[client] for client in queues}
        while queues:
            client = min(queues, key=lambda name: served[name])  # the first of equal ones
            program = queues[client].popleft()
            yield program
            served[client] += works[program.key].expected
            if not queues[client]:
                del queues[client]
