"""vLLM's scheduler with token drafts that are long, often wrong, and made in every step that can
have some. An engine takes it by `EngineOptions.extra["scheduler_cls"]`.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flashedge.engine.vllm.inside import token_drafts
from flashedge.engine.vllm.inside.scheduler import EdgeScheduler
from flashedge.engine.vllm.inside.token_drafts import Drafted, TokenDrafts
from flashedge.scheduling.speculation.token_drafts import DraftToken

SCHEDULER = "tests.support.forced_drafts.ForcedScheduler"
LONGEST = 40
"""Tokens of the longest draft: more than a block of KV has."""
WRONG = 0.1
"""How often a token of a draft is replaced by a random one."""


class FreeRows:
    """Stands for `StepCosts` where drafted rows take no time."""

    is_exploring = False

    def note(self, sequences: int, drafted: int, seconds: float) -> None:
        pass

    def find_least_chance(self, sequences: int) -> float:
        return 0.0

    def count_worthy(self, sequences: int, chances: Sequence[float]) -> int:
        return len(chances)


class ForcedDrafts(TokenDrafts):
    def __init__(self, scheduler: Any, *args: Any) -> None:
        super().__init__(scheduler, *args)
        token_drafts.MOST_TOKENS = LONGEST
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


class ForcedScheduler(EdgeScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token_drafts = ForcedDrafts(self, self.drafts.locate_step, self.boundaries.rules)
        self.card_drafts._costs = self.token_drafts._costs
