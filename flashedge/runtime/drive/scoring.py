"""Scores a run's steps on its verifier.

A level is scored when all of its steps are generated, or with `Optimizations.early_scores` each
step when it ends. The scores are the same. Early scores waste nothing unless the run is cut, since
only searches that score every step use them. They pay where each engine has cores of its own.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from flashedge.engine.base import ScoreRequest, StepScores, Verifier
from flashedge.errors import PathOverflow
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.drive.speculation_client import DraftedStep, SpeculationClient
from flashedge.runtime.drive.tasks import Stopwatch
from flashedge.runtime.request.validation import Request
from flashedge.runtime.thinking import Thinking
from flashedge.search.aggregates import aggregate
from flashedge.search.base import Scored
from flashedge.search.tree import Tree
from flashedge.search.voting import Search
from flashedge.types import NodeId, Segment

log = logging.getLogger(__name__)


class ScoredEarly:
    """A step of an open level has its scores. The search gets them when its level is whole."""


Start = Callable[[Coroutine[Any, Any, StepScores], NodeId], asyncio.Task[StepScores]]
"""Starts a task that ends when its node is cancelled."""


class Scoring:
    """Scores the nodes of one run."""

    def __init__(
        self,
        search: Search[Any],
        asked: Request,
        engines: Engines,
        speculation_client: SpeculationClient,
        earlier: EarlierRun,
        on_restart: Callable[[float], None],
        thinking: Thinking,
        on_early: Callable[[ScoredEarly], None] | None = None,
    ) -> None:
        """on_early: called for each step that has its scores early. None if nobody asks for
        `early_scores`."""
        self._asked = asked
        self._engines = engines
        self._thinking = thinking
        self._judges_answers = search.judges == "answers"
        switches, verifier = engines.optimizations, engines.verifier
        self._score = ScoreOnce(verifier).score if switches.score_once else verifier.score
        self._speculation_client = speculation_client
        self._earlier = earlier
        self._on_restart = on_restart
        self._is_early = switches.early_scores and search.scores_levels
        self._early: dict[NodeId, asyncio.Task[StepScores]] = {}
        self._on_early = on_early
        self.early_scores: dict[NodeId, tuple[float, ...]] = {}
        """What was scored early, as in `base.Scored`."""
        self._has_overflowed = False
        self.waiting = Stopwatch()
        """Time in which the search waits for scores."""
        self.tokens = 0
        """Verifier tokens of the paths that were scored."""
        self.cached_tokens = 0
        """Those of `tokens` whose KV was reused."""

    def receive(self, node: NodeId, steps: tuple[str, ...], segment: Segment, start: Start) -> None:
        """Begin to score a new segment if scores are early. steps: those before it on its path."""
        if self._is_early:
            self._early[node] = start(self._verify(node, steps, segment), node)
            if self._on_early is not None:
                self._early[node].add_done_callback(partial(self._note_early, node))

    def _note_early(self, node: NodeId, scoring: asyncio.Task[StepScores]) -> None:
        assert self._on_early is not None, "somebody asks"
        if not scoring.cancelled() and scoring.exception() is None:
            self.early_scores[node] = scoring.result().scores
            self._on_early(ScoredEarly())

    def find_scores(self, tree: Tree, node: NodeId) -> tuple[float, ...] | None:
        """Find scores that an earlier run or a scored draft left. None if there are none."""
        known = self._earlier.find_scores(tree, node)
        return known or self._speculation_client.take_scores(tree, node)

    async def score(self, state: Any, node: NodeId) -> Scored:
        """Score a generated node, or wait for its early scores. state: a SearchState."""
        tree: Tree = state.tree
        at = tree[node]
        assert at.segment is not None, "a search scores generated nodes only"
        assert at.parent is not None, "a segment has a parent"
        with self.waiting.open():
            if (early := self._early.pop(node, None)) is not None:
                scored = await early
            else:
                ahead = self._speculation_client.find_drafted_step(state, node)
                before = tree.path_steps(at.parent)
                scored = await self._verify(node, before, at.segment, ahead)
        self.tokens += scored.tokens
        self.cached_tokens += scored.cached_tokens
        return Scored(node=node, scores=scored.scores)

    async def _verify(
        self,
        node: NodeId,
        before: tuple[str, ...],
        segment: Segment,
        ahead: DraftedStep | None = None,
    ) -> StepScores:
        """Score a segment's steps. A search that judges answers gets one score, of the whole answer
        after the thinking. A path without an answer, or beyond the verifier's context, scores 0."""
        steps, num_scored, num_scores = (*before, *segment.steps), len(before), len(segment.steps)
        if self._judges_answers:
            steps = self._thinking.list_judged("".join(steps), self._engines.judges)
            num_scored, num_scores, ahead = 0, 1, None
            if not steps:
                return StepScores(scores=(0.0,), tokens=0, cached_tokens=0)
        request = ScoreRequest(
            problem=self._asked.problem,
            steps=steps,
            num_scored=num_scored,
            program=self._engines.program,
            deterministic=self._asked.deterministic,
        )
        try:
            found = await retry_after_restart(
                self._engines.verifier,
                lambda: self._speculation_client.score(self._score, request, node, ahead),
                self._on_restart,
            )
        except PathOverflow as error:
            if not self._has_overflowed:
                log.warning("paths too long for the verifier have the score 0: %s", error.line)
            self._has_overflowed = True
            return StepScores(scores=(0.0,) * num_scores, tokens=0, cached_tokens=0)
        if not self._judges_answers:
            return found
        return replace(found, scores=(aggregate(found.scores, self._asked.aggregate),))


class ScoreOnce:
    """Scores equal paths of a run once, since a small model often writes siblings alike. Equal
    requests wait for the scores of the first. The idea is ours, not the paper's."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._scored: dict[ScoreRequest, StepScores] = {}
        self._pending: dict[ScoreRequest, asyncio.Event] = {}

    async def score(self, request: ScoreRequest) -> StepScores:
        """Return scores, whose tokens all count as cached if another request computed them. If that
        request fails or is cancelled, the next equal one goes to the verifier."""
        while (pending := self._pending.get(request)) is not None:
            await pending.wait()
        if (known := self._scored.get(request)) is not None:
            return replace(known, cached_tokens=known.tokens)
        pending = self._pending[request] = asyncio.Event()
        try:
            self._scored[request] = await self._verifier.score(request)
        finally:
            del self._pending[request]
            pending.set()
        return self._scored[request]
