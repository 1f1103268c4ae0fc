"""Made-up prompts for length predictors: the more words "step", the longer the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest

FILLERS = ("so", "and", "then", "it", "of", "to", "a")
STEP = 3
"""The token that counts; fillers follow."""


def make_run(number: int, *, outputs: int = 6, max_tokens: int = 4_096) -> FinishedOutputs:
    """Make a run whose prompt has 20 to 30 tokens, of which 0 to 9 say how long it gets."""
    random = Random(number)
    count = random.randint(0, 9)
    ids = [STEP] * count + [random.randint(4, 9) for _ in range(20 + random.randint(0, 10) - count)]
    random.shuffle(ids)
    drawn = [round(exp(random.gauss(4.5 + 0.2 * count, 0.2))) for _ in range(outputs)]
    words = ("step" if token == STEP else FILLERS[token - 4] for token in ids)
    return FinishedOutputs(
        request=LengthRequest(
            pair="bundled",
            kind="beam",
            prompt_ids=tuple(ids),
            text="user: " + " ".join(words),
            outputs=outputs,
            max_tokens=max_tokens,
        ),
        lengths=OutputLengths.from_outputs(
            [max(1, min(tokens, max_tokens)) for tokens in drawn],
            [tokens > max_tokens for tokens in drawn],
        ),
    )


def make_runs(numbers: Sequence[int], **fields: int) -> list[FinishedOutputs]:
    """Make several runs."""
    return [make_run(number, **fields) for number in numbers]
