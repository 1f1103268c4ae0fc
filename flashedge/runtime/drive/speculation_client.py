"""What a run tells its engines of the steps that may come, and what it makes of work done ahead.

The generator is told with each step what would follow it; the verifier scores a step together with
a following one that is whole already. Nothing here decides anything: a step begins with tokens
drawn ahead only if its path and seed are those they were drawn for, and scores found ahead count
only for the very tokens they were found for.

Ref: arXiv 2509.00195 §4.1.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from flashedge.engine.base import Chunk, Codec, ScoreRequest, StepScores, Verifier
from flashedge.errors import ContextOverflow
from flashedge.runtime.drive.engines import Engines
from flashedge.scheduling.speculation.slots import FollowUp, potentials
from flashedge.search.base import Expand, Search
from flashedge.search.steps import split_steps
from flashedge.search.tree import Tree
from flashedge.types import NodeId, Speculation, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """A whole step that would follow a node if it were kept; its steps as `Segment.steps`."""

    token_ids: TokenIds
    steps: tuple[str, ...]


class SpeculationClient:
    """One run's, as a context of its own. Does nothing where speculation is off or the generator
    knows none."""

    def __init__(self, search: Search[Any], engines: Engines) -> None:
        self._search = search
        switches = engines.optimizations
        self._speculator = engines.generator.speculator if switches.speculation else None
        self._codec: Codec = engines.generator.codec
        self._looks_ahead = switches.lookahead and self._speculator is not None
        self._run = secrets.token_hex(8)
        self._level = 0
        self._seeds: frozenset[int] = frozenset()
        self._follow_ups: dict[NodeId, FollowUp] = {}
        self._drafts: Mapping[int, TokenIds] = {}
        self._scores: dict[tuple[NodeId, TokenIds], tuple[float, ...]] = {}
        self._told = Speculation()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """The run is over, however: nothing of it stays in the generator."""
        if self._speculator is not None:
            drawn = await self._speculator.end(self._run)
            self._told = replace(self._told, drawn_tokens=drawn)

    # ------------------------------------------------------------ generation

    def next_level(self, state: Any, expansions: Sequence[Expand]) -> bool:
        """Take in the level that these commands begin. Whether there is a generator to `settle`."""
        if self._speculator is None or not expansions:
            return False
        self._level += 1
        children = [(e.parent, child) for e in expansions for child in e.children]
        self._seeds = frozenset(child.seed for _, child in children)
        after = {child.node: self._search.lookahead(state, child.node) for _, child in children}
        widest = max(len(found.seeds) for found in after.values())
        before = [_last_score(state.tree, parent) for parent, _ in children]
        self._follow_ups = {
            child.node: FollowUp(
                run=self._run,
                level=self._level,
                seeds=after[child.node].seeds,
                granularity=after[child.node].granularity,
                potential=potential,
            )
            for (_, child), potential in zip(children, potentials(before, widest), strict=True)
        }
        return True

    def follow_up(self, node: NodeId) -> FollowUp | None:
        """What the generator is told with a node's request."""
        return self._follow_ups.get(node)

    async def settle(self) -> None:
        """Have the generator drop what the level that has begun does not use."""
        if self._speculator is not None:
            await self._speculator.keep(self._run, self._level, self._seeds)

    def count(self, chunks: Sequence[Chunk]) -> None:
        """Take in a step that was generated."""
        kept = sum(chunk.speculated_tokens for chunk in chunks)
        told = self._told
        self._told = replace(
            told, kept_tokens=told.kept_tokens + kept, kept_steps=told.kept_steps + (kept > 0)
        )

    # ------------------------------------------------------------ verification

    async def look(self) -> None:
        """See which following steps are whole, before a level is scored."""
        if self._looks_ahead and self._speculator is not None:
            whole = await self._speculator.whole_drafts(self._run)
            self._drafts = {draft.seed: draft.token_ids for draft in whole}

    def following(self, state: Any, node: NodeId) -> Following | None:
        """The first child of `node` that is whole: what is scored together with it."""
        if not self._drafts:
            return None
        after = self._search.lookahead(state, node)
        for seed in after.seeds:
            if (drawn := self._drafts.get(seed)) is not None:
                ids = drawn[: after.granularity.max_tokens]
                return Following(token_ids=ids, steps=split_steps(self._codec.decode(ids)))
        return None

    async def score(
        self, verifier: Verifier, request: ScoreRequest, node: NodeId, ahead: Following | None
    ) -> StepScores:
        """Score the node of `request`, and in the same call what follows it, to be remembered.

        Raises what the verifier raises; a following step that does not fit is left out.
        """
        if ahead is None:
            return await verifier.score(request)
        try:
            both = await verifier.score(replace(request, steps=request.steps + ahead.steps))
        except ContextOverflow:
            return await verifier.score(request)
        asked = len(request.steps) - request.num_scored
        self._scores[node, ahead.token_ids] = both.scores[asked:]
        return replace(both, scores=both.scores[:asked])

    def known(self, tree: Tree, node: NodeId) -> tuple[float, ...] | None:
        """Scores of a node's steps that were found ahead."""
        at = tree[node]
        if at.segment is None or at.parent is None:
            return None
        found = self._scores.pop((at.parent, at.segment.token_ids), None)
        if found is not None:
            self._told = replace(self._told, scored_steps=self._told.scored_steps + len(found))
        return found

    @property
    def told(self) -> Speculation:
        """What was drawn and used ahead; `drawn_tokens` is known at the end."""
        return self._told


def _last_score(tree: Tree, node: NodeId) -> float | None:
    """Of the step before: the last one on the path that has a score."""
    scores = tree.path_scores(node)
    return scores[-1] if scores else None
