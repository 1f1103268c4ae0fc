"""Who asks for a run, and how urgently."""

from __future__ import annotations

from dataclasses import dataclass

from flashedge.scheduling.programs.program import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks, and how urgently."""

    client: str = ""
    program: str | None = None
    """The key of the program that the request is a part of. None: a program of its own."""

    priority: int = 0
    """Smaller is more urgent. Above 0 it is batch work, which waits for everything else."""

    def choose_kind(self, usual: Kind) -> Kind:
        return Kind.BATCH if self.priority > 0 else usual


NOBODY = Asker()
