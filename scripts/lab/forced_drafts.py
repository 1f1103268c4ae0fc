"""vLLM's scheduler with drafts that the usual one would not make. No result may change by them.

`EagerScheduler` drafts every step that may follow, whatever that costs. `ForcedScheduler` also
takes random children for certain, and drafts tokens that are long and often wrong, in every step
that can have some.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from flashedge.engine.vllm.inside import token_drafts
from flashedge.engine.vllm.inside.scheduler import EdgeScheduler
from flashedge.engine.vllm.inside.token_drafts import Drafted, TokenDrafts
from flashedge.scheduling.speculation.draft_board import DraftBoard, DraftPlan
from flashedge.scheduling.speculation.draft_choice import BatchView
from flashedge.scheduling.speculation.token_drafts import DraftToken

LONGEST = 40
"""Tokens of the longest draft: more than a block of KV has."""
WRONG = 0.1
"""How often a token of a draft is replaced by a random one."""


class EveryDraft:
    """Stands for `DraftGains` where every draft of a step pays."""

    def note(self, *level: Any) -> None:
        pass

    def choose_least_chance(self, *level: Any) -> float:
        return 0.0


class EagerScheduler(EdgeScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drafts._board._gains = cast("Any", EveryDraft())


class FreeRows:
    """Stands for `StepCosts` where drafted rows take no time."""

    is_exploring = False
    undrafted = (1.0, 0.0)

    def note(self, sequences: int, drafted: int, seconds: float) -> None:
        pass

    def find_least_chance(self, sequences: int) -> float:
        return 0.0

    def count_worthy(self, sequences: int, chances: Sequence[float]) -> int:
        return len(chances)


class ForcedDrafts(TokenDrafts):
    def __init__(self, scheduler: Any, *args: Any) -> None:
        super().__init__(scheduler, *args)
        cast("Any", token_drafts).MOST_TOKENS = LONGEST
        self._costs: Any = FreeRows()
        self._random = random.Random(5)
        self._vocab = scheduler.vllm_config.model_config.get_vocab_size()

    def _has_room(self) -> bool:
        return True

    def _draft(self, known: Drafted, least_chance: float) -> list[DraftToken]:
        return [self._spoil(known, guess) for guess in super()._draft(known, least_chance)]

    def _spoil(self, known: Drafted, guess: DraftToken) -> DraftToken:
        token = self._random.randrange(self._vocab)
        is_right = self._random.random() >= WRONG or known.ends_step(guess.token, token)
        return guess if is_right else replace(guess, token=token)


class RandomCommits(DraftBoard):
    """Takes some children of finished beams for certain that are not."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(7)
        self._gains = cast("Any", EveryDraft())

    def plan(self, view: BatchView) -> DraftPlan:
        for (run, number), level in self._levels.items():
            for beam in level.beams.values():
                if self._random.random() < WRONG:
                    children = self._random.randint(1, len(beam.continuation.seeds))
                    self.commit(run, number, {beam.continuation.seeds[0]: children})
        return super().plan(view)


class ForcedScheduler(EagerScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drafts._board = RandomCommits()
        self.token_drafts = ForcedDrafts(self, self.drafts.locate_step, self.boundaries.rules)
        self.card_drafts._costs = self.token_drafts._costs
