"""Equal paths of a run are scored once: one asks the verifier, the others take its answer.

Siblings often write the same words, those of a small model above all, and a score is a function of
the words. So nothing is lost: the duplicates are dropped, or kept, as the search would anyhow. The
naive twin is the verifier itself. Not the paper's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flashedge.engine.base import ScoreRequest, StepScores, Verifier
from flashedge.engine.proxy import Passing


class ScoreOnce(Passing[Verifier]):
    """One run's verifier. Implements `engine.base.Verifier`."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__(verifier)
        self._scored: dict[ScoreRequest, StepScores] = {}
        self._asked: dict[ScoreRequest, asyncio.Event] = {}

    async def score(self, request: ScoreRequest) -> StepScores:
        """See `engine.base`. Who takes another's answer has all of its tokens cached; if the other
        one fails or is cancelled, it asks itself."""
        while (asked := self._asked.get(request)) is not None:
            await asked.wait()
        if (known := self._scored.get(request)) is not None:
            return replace(known, cached_tokens=known.tokens)
        asked = self._asked[request] = asyncio.Event()
        try:
            self._scored[request] = await self._engine.score(request)
        finally:
            del self._asked[request]
            asked.set()
        return self._scored[request]
