"""Scores a run's steps on its verifier.

A level is scored when all of its steps are generated, or each step when it ends
(`Optimizations.early_scores`); the scores are the same. Early scores waste nothing unless the run
is cut, since a search scores every step that it generates. They pay where each engine has
processors of its own (ADR 8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from flashedge.engine.base import ScoreRequest, StepScores
from flashedge.errors import PathOverflow
from flashedge.runtime.drive.earlier_run import EarlierRun
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.drive.score_once import ScoreOnce
from flashedge.runtime.drive.speculation_client import DraftedStep, SpeculationClient
from flashedge.runtime.drive.stopwatch import Stopwatch
from flashedge.runtime.request.request import Request
from flashedge.runtime.thinking import Thinking
from flashedge.search.base import Scored, Search
from flashedge.search.scoring import aggregate
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Segment

log = logging.getLogger(__name__)


class Start(Protocol):
    """Starts a task of the run, for one of its nodes."""

    def __call__(
        self, work: Coroutine[Any, Any, StepScores], node: NodeId, /
    ) -> asyncio.Task[StepScores]: ...


class Scoring:
    """Scores the steps of one run."""

    def __init__(
        self,
        search: Search[Any],
        spec: Request,
        engines: Engines,
        speculation_client: SpeculationClient,
        earlier: EarlierRun,
        on_restart: Callable[[float], None],
        thinking: Thinking,
    ) -> None:
        self._problem, self._aggregate = spec.problem, spec.aggregate
        self._deterministic = spec.deterministic
        self._thinking = thinking
        self._search_judges, self._verifier_judges = search.judges, engines.judges
        self._program = engines.program
        switches, verifier = engines.optimizations, engines.verifier
        self._verifier = ScoreOnce(verifier) if switches.score_once else verifier
        self._speculation_client = speculation_client
        self._earlier = earlier
        self._on_restart = on_restart
        self._is_early = switches.early_scores and search.scores_levels
        self._early: dict[NodeId, asyncio.Task[StepScores]] = {}
        self._has_overflown = False
        self.waiting = Stopwatch()
        """Time in which the search waits for scores."""
        self.tokens = 0
        """Verifier tokens of the paths that were scored."""
        self.cached_tokens = 0
        """Those of `tokens` whose KV was reused."""

    def receive(
        self, node: NodeId, before: tuple[str, ...], segment: Segment, start: Start
    ) -> None:
        """Begin to score a new segment if scores are early. before: the steps of the path to it;
        start: starts a task of the run."""
        if self._is_early:
            self._early[node] = start(self._verify(node, before, segment), node)

    def find_scores(self, tree: Tree, node: NodeId) -> tuple[float, ...] | None:
        """Find the scores of a node that are known without the verifier."""
        known = self._earlier.find_scores(tree, node)
        return known or self._speculation_client.take_scores(tree, node)

    async def score(self, state: Any, node: NodeId) -> Scored:
        """Score a node's segment. Raises what the verifier raises after its retries."""
        tree: Tree = state.tree
        at = tree[node]
        assert at.segment is not None, "a search scores generated nodes only"
        assert at.parent is not None, "a segment has a parent"
        with self.waiting.open():
            early = self._early.pop(node, None)
            if early is None:
                ahead = self._speculation_client.find_drafted_step(state, node)
                before = tree.path_steps(at.parent)
                scored = await self._verify(node, before, at.segment, ahead)
            else:
                scored = await early
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
        """A path that the verifier's context does not hold can't be judged, and has the score 0."""
        try:
            if self._search_judges == "answers":
                return await self._verify_answer("".join((*before, *segment.steps)))
            return await self._verify_steps(node, before, segment, ahead)
        except PathOverflow as error:
            if not self._has_overflown:
                log.warning("such paths of this run have the score 0: %s", error.line)
            self._has_overflown = True
            count = 1 if self._search_judges == "answers" else len(segment.steps)
            return StepScores(scores=(0.0,) * count, tokens=0, cached_tokens=0)

    async def _verify_steps(
        self,
        node: NodeId,
        before: tuple[str, ...],
        segment: Segment,
        ahead: DraftedStep | None,
    ) -> StepScores:
        request = ScoreRequest(
            problem=self._problem,
            steps=(*before, *segment.steps),
            num_scored=len(before),
            program=self._program,
            deterministic=self._deterministic,
        )
        return await retry_after_restart(
            self._verifier,
            lambda: self._speculation_client.score(self._verifier, request, node, ahead),
            self._on_restart,
        )

    async def _verify_answer(self, path: str) -> StepScores:
        """One score of the answer behind the thinking. A path that still thinks at its end has no
        answer, and the score 0."""
        steps = self._thinking.judge_answer(path, self._verifier_judges)
        if not steps:
            return StepScores(scores=(0.0,), tokens=0, cached_tokens=0)
        request = ScoreRequest(
            problem=self._problem,
            steps=steps,
            program=self._program,
            deterministic=self._deterministic,
        )
        found = await retry_after_restart(
            self._verifier, lambda: self._verifier.score(request), self._on_restart
        )
        return replace(found, scores=(aggregate(found.scores, self._aggregate),))
