"""The programs that are here, and the one order that the queue and the engines follow.

The order of programs:

1. those that once got no token for `escalate_after_s`, by arrival
2. chats, then searches, then batch work (`Kind`)
3. within a kind: those that have started, where programs are scheduled as a gang
4. by the policy's score, then by arrival, then by key; batch work by arrival alone, since whoever
   reads its results reads them from the first one on

Within 2 and 3 clients take turns (`fairness`), which goes before 4.

By (1) no program starves: from then on only such programs that arrived before it go first.

Ref: arXiv 2412.20993 App. D.3.1; arXiv 2604.00499 §4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashedge.scheduling.programs.fairness import ServedTokens, interleave_clients
from flashedge.scheduling.programs.policies import Policy, Pressure
from flashedge.scheduling.programs.program import Kind, Program
from flashedge.scheduling.programs.table import ProgramTable
from flashedge.scheduling.programs.work import Work

_KIND_PLACES = {kind: at for at, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How programs are ordered."""

    policy: Policy
    is_gang: bool = True
    """Whether programs that have started go before those that have not, so that a program's
    requests run together."""

    is_fair: bool = True
    """Whether clients take turns."""

    ranks_kinds: bool = True
    """Whether chats go before searches, and both before batch work."""

    escalate_after_s: float | None = 60.0
    """A program that got no token for so long goes first until it is over. None: never."""


class ProgramBoard:
    """Keeps programs and orders them. Has no clock: times are arguments."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._programs: dict[str, Program] = {}
        self._works: dict[str, Work] = {}
        """What each program has left, by key. Given with each change, since programs are ordered
        far more often than they change."""
        self._escalated: set[str] = set()
        self._served = ServedTokens()

    def __contains__(self, key: str) -> bool:
        return key in self._programs

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, key: str) -> Program | None:
        return self._programs.get(key)

    @property
    def programs(self) -> tuple[Program, ...]:
        """All of them, in the order of their arrival at the board."""
        return tuple(self._programs.values())

    def find_work(self, key: str) -> Work:
        """What a program has left. Raises KeyError for one that is not here."""
        return self._works[key]

    def add(self, program: Program, work: Work) -> None:
        """work: what the program has left. See `estimate_work`; a program of several members has
        the sum of theirs.

        Raises ValueError for a key that is here already.
        """
        if program.key in self._programs:
            raise ValueError(f"program {program.key!r} is on the board already")
        self._served.join(program.client, self._list_clients())
        self._programs[program.key], self._works[program.key] = program, work

    def update(self, key: str, work: Work, **changes: Any) -> bool:
        """Change fields of a program. Newly drawn tokens count as its client's service. work: what
        it has left from now on.

        False, and nothing changes, for a program that is gone: its last news may come late.
        """
        before = self._programs.get(key)
        if before is None:
            return False
        after = replace(before, **changes)
        self._programs[key], self._works[key] = after, work
        self._served.add(after.client, max(0, after.drawn_tokens - before.drawn_tokens))
        return True

    def note_start(self, key: str, now_s: float) -> None:
        """A program has started. What it has left stays the same."""
        self._programs[key] = replace(self._programs[key], started_s=now_s)

    def note_service(self, key: str, now_s: float) -> None:
        """The engines go on with a program. What it has left stays the same."""
        self._programs[key] = replace(self._programs[key], served_s=now_s)

    def remove(self, key: str) -> None:
        """The program is over. Does nothing where it is gone."""
        self._programs.pop(key, None)
        self._works.pop(key, None)
        self._escalated.discard(key)
        self._served.forget(self._list_clients())

    # ------------------------------------------------------------ the order

    def order(self, now_s: float, max_batch: int) -> tuple[str, ...]:
        """The keys of all programs, the first to run first."""
        found = self.rank(self._programs.values(), now_s, max_batch)
        return tuple(program.key for program in found)

    def rank(
        self, programs: Iterable[Program], now_s: float, max_batch: int
    ) -> tuple[Program, ...]:
        """Order programs of the board."""
        found = list(programs)
        self._escalate(now_s)
        waiting = sum(program.started_s is None for program in self._programs.values())
        pressure = Pressure(waiting=waiting, max_batch=max_batch)
        table = ProgramTable.build(found, self._works, now_s)
        scores = self.rules.policy.score(table, pressure)
        scored = sorted(
            zip(found, scores, strict=True),
            key=lambda pair: (
                self._find_class(pair[0]),
                0.0 if self._is_batch(pair[0]) else pair[1],
                *_tie_break(pair[0]),
            ),
        )
        ordered = [program for program, _ in scored]
        return self._take_turns(ordered) if self.rules.is_fair else tuple(ordered)

    def _find_class(self, program: Program) -> tuple[int, float, int]:
        """What goes before any score."""
        if program.key in self._escalated:
            return (0, program.arrived_s, 0)
        kind = _KIND_PLACES[program.kind] if self.rules.ranks_kinds else 0
        waits = self.rules.is_gang and not program.is_under_way
        return (1, kind, waits)

    def _is_batch(self, program: Program) -> bool:
        return self.rules.ranks_kinds and program.kind is Kind.BATCH

    def _escalate(self, now_s: float) -> None:
        """Note who got nothing for too long. With one token a minute it would starve all the same,
        so it keeps its place until it is over."""
        limit = self.rules.escalate_after_s
        if limit is not None:
            self._escalated |= {
                program.key
                for program in self._programs.values()
                if now_s - program.waits_since_s >= limit
            }

    def _take_turns(self, ordered: Sequence[Program]) -> tuple[Program, ...]:
        """Interleave the clients within each class. The escalated ones stay as they are."""
        groups: dict[tuple[int, float, int], list[Program]] = {}
        for program in ordered:
            groups.setdefault(self._find_class(program), []).append(program)
        served = self._served.by_client()
        return tuple(
            program
            for group in groups.values()
            for program in interleave_clients(group, served, self._works)
        )

    def _list_clients(self) -> list[str]:
        return list({program.client for program in self._programs.values()})


def _tie_break(program: Program) -> tuple[float, str]:
    return program.arrived_s, program.key
