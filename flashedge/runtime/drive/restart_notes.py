"""Tells a run's followers of each restart of an engine once."""

from __future__ import annotations

from collections.abc import Callable

from flashedge.engine.base import Generator, Verifier
from flashedge.events import EngineRestarted, Event


class RestartNotes:
    """Emits each restart once, however many requests waited for it."""

    def __init__(self, generator: Generator, verifier: Verifier, emit: Callable[[Event], None]):
        self._names: dict[Generator | Verifier, str] = {
            generator: "generator",
            verifier: "verifier",
        }
        self._restarts = {engine: engine.health().restarts for engine in self._names}
        self._emit = emit

    def of(self, engine: Generator | Verifier) -> Callable[[float], None]:
        """Build the callback for `retry_after_restart`."""

        def note(waited_s: float) -> None:
            restarts = engine.health().restarts
            if restarts != self._restarts[engine]:
                self._restarts[engine] = restarts
                self._emit(EngineRestarted(engine=self._names[engine], waited_s=waited_s))

        return note
