"""A run's side of speculation: what may follow each step, and scores of complete drafts.

Each of the run's requests says what may follow its step, so that the generator can draft that. Once
a step is certainly kept, it is told to draft the step's children as if they were requested. With
lookahead, the verifier scores a step together with a complete draft after it. No result changes: a
request adopts a draft only if path and seed are the same, and scores found ahead are used only for
the very tokens that were scored.

Ref: arXiv 2509.00195 §4.1.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from flashedge.engine.base import Chunk, ScoreRequest, StepScores
from flashedge.errors import ContextOverflow
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.drive.segments import StepSplitter
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.speculation.draft_choice import limit_drafts
from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.search.base import Cancel, Command, Expand
from flashedge.search.early_commit import NONE, Certain, find_certain
from flashedge.search.mcts.rollouts import MctsState
from flashedge.search.tree import NodeStatus, Tree
from flashedge.search.voting import Search, SearchState
from flashedge.types import ENTROPY, NodeId, Speculation, TokenIds

Drop = tuple[tuple[int, ...], frozenset[int]]
"""Numbers of levels whose successors the search has chosen, and the seeds of the successors."""

Commits = tuple[int, Mapping[int, int]]
"""The number of a level, and what `Speculator.commit` needs of its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedStep:
    """A complete draft that would follow a node if the node were kept."""

    token_ids: TokenIds
    steps: tuple[str, ...]
    """Its text, split as in `Segment.steps`."""


class SpeculationClient:
    """One run's client, an async context manager. It does nothing where speculation is off or the
    generator does not speculate.

    With the step rule `entropy` nothing is drafted. There a step's end is known only after the next
    token was drawn. By then all of the request's tokens are computed, so vLLM can't continue it.
    """

    def __init__(
        self, search: Search[Any], asked: Request, engines: Engines, splitter: StepSplitter
    ) -> None:
        self._search = search
        self._splitter = splitter
        self._deterministic = asked.deterministic
        switches = engines.optimizations
        speculates = switches.speculation and splitter.rule != ENTROPY
        self._speculator = engines.generator.speculator if speculates else None
        self._most_drafted = engines.generator.most_drafted
        self.may_draft = True
        """Whether the last level is narrow enough to draft."""
        self._lookahead = self._speculator if switches.lookahead else None
        is_guided = asked.guidance is not None
        self.commits_early = bool(self._speculator and switches.early_commit and not is_guided)
        """Whether `find_commits` may find anything."""
        self._certain: Certain = NONE
        """The nodes of the open level that are known to be kept."""
        self._run = secrets.token_hex(8)  # names the run's drafts in the generator
        self._level = 0
        self._levels: dict[int, tuple[NodeId, ...]] = {}
        self._continuations: dict[NodeId, Continuation] = {}
        self._drafts: Mapping[int, TokenIds] = {}  # by seed
        self._scores: dict[tuple[NodeId, TokenIds], tuple[float, ...]] = {}
        self.usage = Speculation()
        """What was drafted and used. `drawn_tokens` is known at the end of the run."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Drop the run's drafts in the generator."""
        if self._speculator is not None:
            drawn, certain = await self._speculator.end_run(self._run)
            self.usage += Speculation(drawn_tokens=drawn, certain_tokens=certain)

    def follow(self, state: SearchState, commands: Sequence[Command]) -> Drop | None:
        """Prepare the continuations of the levels that these commands begin. Returns what
        `drop_unused` needs, or None if no draft can have become useless.

        The expansions that begin together are one level. But rollouts don't wait for each other, so
        in MCTS each expansion is a level of its own.
        """
        expansions = [command for command in commands if isinstance(command, Expand)]
        stops = any(isinstance(command, Cancel) for command in commands)
        if expansions:
            width = sum(len(expansion.children) for expansion in expansions)
            self.may_draft = width <= self._most_drafted
            if not self.may_draft:
                expansions = []
        if self._speculator is None or not (expansions or stops):
            return None
        open_statuses = NodeStatus.GENERATING, NodeStatus.GENERATED
        decided = [  # levels whose results the search has taken
            number
            for number, nodes in self._levels.items()
            if not any(state.tree[node].status in open_statuses for node in nodes)
        ]
        for number in decided:
            for node in self._levels.pop(number):
                self._continuations.pop(node, None)
        levels = [[e] for e in expansions] if isinstance(state, MctsState) else [expansions]
        for level in filter(None, levels):
            self._begin_level(state, level)
        seeds = frozenset(child.seed for e in expansions for child in e.children)
        return tuple(decided), seeds

    def _begin_level(self, state: SearchState, expansions: Sequence[Expand]) -> None:
        self._level += 1
        self._certain = NONE
        children = [(e.parent, child) for e in expansions for child in e.children]
        self._levels[self._level] = tuple(child.node for _, child in children)
        after = {child.node: self._search.look_ahead(state, child.node) for _, child in children}
        widest = max(len(found.seeds) for found in after.values())
        last_scores = [(state.tree.path_scores(parent) or (None,))[-1] for parent, _ in children]
        most = limit_drafts(last_scores, widest)
        self._continuations |= {
            child.node: Continuation(
                run=self._run,
                level=self._level,
                seeds=after[child.node].seeds,
                granularity=after[child.node].granularity,
                max_drafts=max_drafts,
                step_rule=self._splitter.rule,
                deterministic=self._deterministic,
            )
            for (_, child), max_drafts in zip(children, most, strict=True)
        }

    def get_continuation(self, node: NodeId) -> Continuation | None:
        return self._continuations.get(node)

    async def drop_unused(self, drop: Drop) -> None:
        if self._speculator is not None:
            await self._speculator.drop_unused(self._run, *drop)

    def find_commits(
        self,
        state: SearchState,
        scores: Mapping[NodeId, tuple[float, ...]],
        read: Callable[[NodeId], str],
    ) -> Commits | None:
        """Find what has become certain of the open level, for `commit`. None if nothing has. The
        arguments are those of `find_certain`."""
        if not (self.commits_early and scores and self.may_draft):
            return None
        before = self._certain
        found = find_certain(self._search, state, scores, read, before)
        new = {node: count for node, count in found.items() if count > before.get(node, 0)}
        if not new:
            return None
        self._certain = {**before, **new}
        self.usage += Speculation(early_commits=len(new.keys() - before.keys()))
        seeds = {self._continuations[node].seeds[0]: count for node, count in new.items()}
        return self._level, seeds

    async def commit(self, commits: Commits) -> None:
        if self._speculator is not None:
            await self._speculator.commit(self._run, *commits)

    def count(self, chunks: Sequence[Chunk]) -> None:
        """Count what a request adopted of its draft."""
        kept = sum(chunk.speculated_tokens for chunk in chunks)
        self.usage += Speculation(kept_tokens=kept, kept_steps=int(kept > 0))

    async def fetch_drafts(self) -> None:
        """With lookahead, read which drafts are complete now."""
        if self._lookahead is not None:
            self._drafts = await self._lookahead.list_complete(self._run)

    def find_drafted_step(self, state: Any, node: NodeId) -> DraftedStep | None:
        """Find the complete draft of the node's first child that has one. None if none has."""
        if not self._drafts:
            return None
        after = self._search.look_ahead(state, node)
        for seed in after.seeds:
            if (drawn := self._drafts.get(seed)) is not None:
                limit, splitter = after.granularity, self._splitter
                ids = drawn[: limit.max_tokens]
                steps = splitter.split(ids, splitter.codec.decode(ids), to_end=limit.to_end)
                return DraftedStep(token_ids=ids, steps=steps)
        return None

    async def score(
        self,
        score: Callable[[ScoreRequest], Awaitable[StepScores]],
        request: ScoreRequest,
        node: NodeId,
        ahead: DraftedStep | None,
    ) -> StepScores:
        """Score `node`, in one request with the draft after it if both fit into the context. The
        draft's scores wait for `take_scores`; its tokens count in the result."""
        if ahead is None:
            return await score(request)
        try:
            both = await score(replace(request, steps=request.steps + ahead.steps))
        except ContextOverflow:
            return await score(request)
        own = len(request.steps) - request.num_scored
        self._scores[node, ahead.token_ids] = both.scores[own:]
        return replace(both, scores=both.scores[:own])

    def take_scores(self, tree: Tree, node: NodeId) -> tuple[float, ...] | None:
        """Take the scores of the node's steps that were found ahead, and count them as used. None
        if there are none."""
        at = tree[node]
        if at.segment is None or at.parent is None:
            return None
        found = self._scores.pop((at.parent, at.segment.token_ids), None)
        self.usage += Speculation(scored_steps=len(found or ()))
        return found
