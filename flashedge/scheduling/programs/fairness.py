"""Shares the engines evenly between clients, so that an agent with a hundred problems does not keep
a person with one problem waiting.

Each client has counted service, in tokens. The client with the least goes next, by its own best
program, whose expected work is then counted at once. A client that comes back after a pause begins
at the least count of those that are here, so that nobody saves service up.

Ref: the virtual token counter of arXiv 2401.00588, on whole programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from flashedge.scheduling.programs.program import Program
from flashedge.scheduling.programs.work import Work


def interleave_clients(
    programs: Sequence[Program],
    served_tokens: Mapping[str, float],
    works: Mapping[str, Work],
) -> tuple[Program, ...]:
    """Reorder programs, the best first, so that clients take turns by their service.

    served_tokens: by client; a missing client counts as the least served one. works: by key.
    Programs of one client keep their order.
    """
    queues: dict[str, deque[Program]] = {}
    for program in programs:
        queues.setdefault(program.client, deque()).append(program)
    if len(queues) < 2:
        return tuple(programs)
    least = min((served_tokens[c] for c in queues if c in served_tokens), default=0.0)
    served = {client: served_tokens.get(client, least) for client in queues}
    place = {client: at for at, client in enumerate(queues)}  # breaks ties by the policy's order
    found: list[Program] = []
    while queues:
        client = min(queues, key=lambda name: (served[name], place[name]))
        program = queues[client].popleft()
        found.append(program)
        served[client] += works[program.key].expected
        if not queues[client]:
            del queues[client]
    return tuple(found)


class ServedTokens:
    """Counts what each client was served."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}

    def by_client(self) -> Mapping[str, float]:
        return self._served

    def join(self, client: str, present: Sequence[str]) -> None:
        """A client begins to ask, beside those that are present."""
        others = [self._served[name] for name in present if name in self._served and name != client]
        if client not in present:
            floor = min(others, default=0.0)
            self._served[client] = max(self._served.get(client, 0.0), floor)

    def add(self, client: str, tokens: float) -> None:
        self._served[client] = self._served.get(client, 0.0) + tokens

    def forget(self, present: Sequence[str]) -> None:
        """Drop clients that have no program, once nobody is here to be compared with."""
        if not present:
            self._served.clear()
