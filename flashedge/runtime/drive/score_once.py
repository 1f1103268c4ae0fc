"""Scores equal paths of a run once.

Siblings often write the same words, above all those of a small model, and a score is a function of
the words. The first request goes to the verifier; equal ones wait for its scores. The naive twin is
the verifier itself. Ours, not the paper's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flashedge.engine.base import EngineProxy, ScoreRequest, StepScores, Verifier


class ScoreOnce(EngineProxy[Verifier]):
    """A verifier for one run. Implements `engine.base.Verifier`."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__(verifier)
        self._scored: dict[ScoreRequest, StepScores] = {}
        self._pending: dict[ScoreRequest, asyncio.Event] = {}

    async def score(self, request: ScoreRequest) -> StepScores:
        """See `engine.base`. A request that shares the scores of an equal one counts all of its
        tokens as cached. If the equal one fails or is cancelled, it goes to the verifier itself."""
        while (pending := self._pending.get(request)) is not None:
            await pending.wait()
        if (known := self._scored.get(request)) is not None:
            return replace(known, cached_tokens=known.tokens)
        pending = self._pending[request] = asyncio.Event()
        try:
            self._scored[request] = await self._engine.score(request)
        finally:
            del self._pending[request]
            pending.set()
        return self._scored[request]
