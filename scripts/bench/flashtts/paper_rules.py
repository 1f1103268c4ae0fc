"""Rules of the FlashTTS paper that the product has not: its slots, its truncation R, batch limits.

The paper fills the slots that finished beams leave in the batch, as many as there were, those of
the highest M_i first, whatever that costs. With R a duplicate of a beam begins with a part of what
its sibling, child 0, has drafted. Here it does so only where it has no draft of its own, and drafts
end with their step, as ours do. The tokens that it copies count as tokens of its tree, though
nobody computes them twice.

Ref: arXiv 2509.00195 §4.1 (Algorithm 1, line 19), §4.3 (Eq. 1).
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any, cast

from flashedge.engine.base import ExtendRequest
from flashedge.runtime.kv.manager import KvManager
from flashedge.scheduling.kv.split import EngineRole, KvSplit
from flashedge.scheduling.kv.stages import Workload
from flashedge.scheduling.speculation.draft_board import DraftBoard, DraftPlan
from flashedge.scheduling.speculation.draft_choice import (
    BINS,
    BatchView,
    DraftGains,
    Kind,
    RequestRates,
)
from flashedge.scheduling.speculation.drafts import Beam
from flashedge.search.tree import mix64
from flashedge.types import TokenIds
from scripts.lab.sim.generator import SimSpeculator
from scripts.lab.sim.scheduler import SimSequence

SPREAD = 0.1
"""Standard deviation of the share that a duplicate keeps. The paper gives none."""


class _EveryDraft(DraftGains):
    def choose_least_chance(self, *level: Any, **fields: Any) -> float:
        return 0.0


class _HighestFirst(RequestRates):
    """The higher M_i of a draft, the sooner it runs."""

    def find(self, kind: Kind) -> float:
        return kind[1] / (BINS + 1)


class PaperBoard(DraftBoard):
    """Keeps the batch as large as the level was."""

    def __init__(self) -> None:
        super().__init__()
        self._rates, self._gains = _HighestFirst(), _EveryDraft()

    def plan(self, view: BatchView) -> DraftPlan:
        levels = (level for level in self._levels.values() if not level.is_decided)
        width = max((level.generating + len(level.ended) for level in levels), default=0)
        return super().plan(replace(view, max_running=min(view.max_running, width)))


class PaperSpeculator(SimSpeculator):
    slots = DraftBoard
    ratio: float | None = None
    """The mean of R. None: every child begins with its own draft or with nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.board = self.slots()

    def add_beam(
        self, request: ExtendRequest, sequence: SimSequence
    ) -> tuple[Beam | None, list[tuple[int, float]]]:
        beam, drafted = super().add_beam(request, sequence)
        if drafted or beam is None or self.ratio is None:
            return beam, drafted
        copied = copy_draft(self.board, beam, request.token_ids, self.ratio, request.seed)
        sequence.tokens += [token for token, _ in copied]
        beam.adopted = len(copied)
        return beam, copied


def copy_draft(
    board: DraftBoard, beam: Beam, path: TokenIds, ratio: float, seed: int
) -> list[tuple[int, float]]:
    """The tokens with which a duplicate begins, with log-probabilities: a part of what was drafted
    for child 0 of the same path, if anything was."""
    for level in board._list_levels(beam.continuation.run):
        parent = level.beams.get(path)
        if parent is not None and parent.drafts and (first := parent.drafts[0]).token_ids:
            size = truncate_draft(len(first.token_ids), ratio, seed)
            return list(zip(first.token_ids, first.logprobs, strict=True))[:size]
    return []


def truncate_draft(length: int, ratio: float, seed: int) -> int:
    """How many tokens of its sibling's draft a duplicate keeps: a share drawn around `ratio`. At
    least one token is its own."""
    share = NormalDist(ratio, SPREAD).inv_cdf((mix64(seed, length) + 0.5) / 2**63)
    return min(length - 1, round(length * min(1.0, max(0.0, share))))


def count_new_tokens(run: Mapping[str, Any], exact: Mapping[str, Any]) -> int:
    """The tokens of a tree of R less its copies: what its steps kept of drafts beyond what those of
    `exact`, the same search without R, kept."""
    return int(run["tokens"] - (run["kept_tokens"] - exact["kept_tokens"]))


class LimitingManager(KvManager):
    """Sets B_dec and B_pre of the chosen split as the most sequences of a step, as Eq. 1 has it."""

    def choose_split(self, load: Workload) -> KvSplit:
        split = super().choose_split(load)
        engines = cast("Any", self.mover._engines)
        engines[EngineRole.GENERATOR]._scheduler.max_num_seqs = max(1, split.decode_batch)
        engines[EngineRole.VERIFIER]._scheduler.max_num_seqs = max(1, split.prefill_batch)
        return split
