"""What a run asks of its verifier: the steps of a level at once when it is whole, or each as it
comes (`Optimizations.early_scores`), while others of its level still generate. The scores are the same.

A search decides about whole levels, so a step that is generated will be scored: nothing of it is
in vain unless the run is cut. It pays where each engine has processors of its own (ADR 8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from flashedge.engine.base import ScoreRequest, StepScores
from flashedge.runtime.drive.earlier_run import Recall
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.retry import retry_after_restart
from flashedge.runtime.drive.score_once import ScoreOnce
from flashedge.runtime.drive.speculation_client import Following, SpeculationClient
from flashedge.runtime.drive.stopwatch import Stopwatch
from flashedge.search.base import Scored, Search
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Problem, Segment

Start = Callable[[Coroutine[Any, Any, StepScores]], "asyncio.Task[StepScores]"]


class Scoring:
    """One run's. waiting: the time in which the search waits for scores; tokens: of the paths that
    were scored, cached_tokens: those whose KV was there."""

    def __init__(
        self,
        search: Search[Any],
        problem: Problem,
        engines: Engines,
        speculation_client: SpeculationClient,
        recall: Recall,
        on_restart: Callable[[float], None],
    ) -> None:
        self._problem = problem
        switches, verifier = engines.optimizations, engines.verifier
        self._verifier = ScoreOnce(verifier) if switches.score_once else verifier
        self._speculation_client = speculation_client
        self._recall = recall
        self._on_restart = on_restart
        self._is_early = switches.early_scores and search.scores_levels
        self._early: dict[NodeId, asyncio.Task[StepScores]] = {}
        self.waiting = Stopwatch()
        self.tokens = 0
        self.cached_tokens = 0

    def came(self, node: NodeId, before: tuple[str, ...], segment: Segment, start: Start) -> None:
        """A segment was generated behind the steps `before`. start: begins work of the run."""
        if self._is_early and node not in self._recall.scores:
            self._early[node] = start(self._verified(node, before, segment))

    def known(self, tree: Tree, node: NodeId) -> tuple[float, ...] | None:
        """Scores for which the verifier need not be asked."""
        return self._recall.scores.get(node) or self._speculation_client.known(tree, node)

    async def score(self, state: Any, node: NodeId) -> Scored:
        """Raises what the verifier raises after its retries."""
        tree: Tree = state.tree
        at = tree[node]
        assert at.segment is not None, "a search scores generated nodes only"
        assert at.parent is not None, "a segment follows something"
        with self.waiting.open():
            early = self._early.pop(node, None)
            if early is None:
                ahead = self._speculation_client.following(state, node)
                before = tree.path_steps(at.parent)
                scored = await self._verified(node, before, at.segment, ahead)
            else:
                scored = await early
        self.tokens += scored.tokens
        self.cached_tokens += scored.cached_tokens
        return Scored(node=node, scores=scored.scores)

    async def _verified(
        self,
        node: NodeId,
        before: tuple[str, ...],
        segment: Segment,
        ahead: Following | None = None,
    ) -> StepScores:
        request = ScoreRequest(
            problem=self._problem, steps=(*before, *segment.steps), num_scored=len(before)
        )
        return await retry_after_restart(
            self._verifier,
            lambda: self._speculation_client.score(self._verifier, request, node, ahead),
            self._on_restart,
        )
