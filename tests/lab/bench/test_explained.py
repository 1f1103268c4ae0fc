"""How much of the variance over prompts a predictor explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from flashedge.scheduling.lengths.base import LengthDistribution
from flashedge.scheduling.lengths.families.log_t import LogT
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs, LengthRequest
from scripts.bench.lengths.explained import measure_explained
from scripts.bench.lengths.workload import LengthWorkload

PROMPTS, OUTPUTS = 40, 60
TRUE = [
    LogT(Random(f"mu {i}").uniform(4, 6), Random(f"sigma {i}").uniform(0.1, 0.4))
    for i in range(PROMPTS)
]


class Scripted:
    """Implements what `measure_explained` asks of a predictor, and says what it was told."""

    def __init__(self, of: Mapping[LengthRequest, LengthDistribution]) -> None:
        self.of = of

    def predict(self, requests: Sequence[LengthRequest]) -> list[LengthDistribution | None]:
        return [self.of[request] for request in requests]

    def learn(self, finished: FinishedOutputs) -> None:
        pass

    def explain(self, request: LengthRequest) -> str:
        return ""


@pytest.fixture(scope="module")
def finished() -> list[FinishedOutputs]:
    """Prompts whose outputs have the distributions of TRUE."""
    workload = LengthWorkload(lambda turns: tuple(turns[0].content.encode()))
    found = []
    for index, distribution in enumerate(TRUE):
        shares = [(k + 0.5) / OUTPUTS for k in range(OUTPUTS)]
        tokens = [max(1, round(float(distribution.quantile(share)))) for share in shares]
        request = workload.make(index).request
        found.append(FinishedOutputs(request=request, lengths=OutputLengths.from_outputs(tokens)))
    return found


def predict(finished: Sequence[FinishedOutputs], said: Sequence[LogT]) -> Scripted:
    return Scripted(dict(zip([one.request for one in finished], said, strict=True)))


def test_the_truth_explains_all_also_when_it_is_rescaled(finished: list[FinishedOutputs]) -> None:
    twice = [LogT(2 * one.mu, one.sigma**2) for one in TRUE]
    for said in (TRUE, twice):
        mu, sigma = measure_explained(predict(finished, said), finished)
        assert mu > 0.98
        assert sigma > 0.95


def test_what_belongs_to_another_prompt_explains_little(finished: list[FinishedOutputs]) -> None:
    shuffled = Random(3).sample(TRUE, PROMPTS)
    mu, sigma = measure_explained(predict(finished, shuffled), finished)
    assert mu < 0.2
    assert sigma < 0.2
