"""Made-up prompts for length predictors: the more words "step", the longer the outputs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random

import numpy as np
from scipy import special

from flashedge.events import Event, RunStarted
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.lengths.distribution import Floats
from flashedge.scheduling.lengths.outputs import FinishedOutputs, LengthRequest, OutputLengths
from flashedge.types import Problem
from tests.support.made_run import build_level, build_step


@dataclass(frozen=True)
class LogNormal:
    """ln X = mu + sigma·Z, where Z is standard normal: log-t without its heavy tail."""

    mu: float
    sigma: float

    def log_survival(self, tokens: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(special.log_ndtr((self.mu - np.log(tokens)) / self.sigma))

    def inverse_survival(self, share: Floats) -> Floats:
        return np.asarray(np.exp(self.mu - self.sigma * special.ndtri(share)))


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
    text = "user: " + " ".join("step" if i == STEP else FILLERS[i - 4] for i in ids)
    limits = {"outputs": outputs, "max_tokens": max_tokens}
    request = LengthRequest(pair="bundled", kind="beam", prompt_ids=tuple(ids), text=text, **limits)
    tokens = [max(1, min(tokens, max_tokens)) for tokens in drawn]
    lengths = OutputLengths.from_outputs(tokens, [tokens > max_tokens for tokens in drawn])
    return FinishedOutputs(request=request, lengths=lengths)


def make_runs(numbers: Sequence[int], **fields: int) -> list[FinishedOutputs]:
    return [make_run(number, **fields) for number in numbers]


def store_runs(store: RunStore, count: int) -> None:
    """Store runs of two samples each, as a daemon would have."""
    for number in range(count):
        run = make_run(number, outputs=2)
        problem = Problem.from_text(f"{run.request.text.removeprefix('user: ')} {number}")
        spec = Request(problem=problem, pair="bundled", strategy="self_consistency", n=2)
        run_id = f"run-{number:012d}"
        store.create(run_id, spec.to_json(), time.time() + number)
        events: list[Event] = [
            RunStarted(config=spec.to_json(), queue_s=0.0),
            build_level(0, 1, 1, 2),
            *(
                build_step(i, "", tokens=tokens, finish="stop")
                for i, tokens in enumerate(run.lengths.tokens, 1)
            ),
        ]
        for at, event in enumerate(events, 1):
            store.append(run_id, at, event)
        usage = {"usage": {"prompt_tokens": 30}}
        store.finish(run_id, "finished", usage, None, time.time())
