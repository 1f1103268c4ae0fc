"""The loads of the scheduling studies: prompts, their predictions, arrivals, and the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import log
from random import Random
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from flashedge.config import load_config
from flashedge.models.checkpoint_shape import find_pair_shapes
from flashedge.models.registry import find_pair
from scripts.lab.benchmark.devices import CARDS, OVERHEADS
from scripts.lab.benchmark.load.plan import BurstyArrivals
from scripts.lab.benchmark.requests.event_driven import (
    RequestCase,
    order_by_arrival,
    serve_by_events,
)
from scripts.lab.benchmark.requests.predictions import PAPER, Quality, predict
from scripts.lab.benchmark.requests.prompts import (
    DEFAULT,
    SHIFTED,
    LengthPrior,
    Prompts,
    draw_prompts,
    draw_trace_prompts,
    scale_to_dispersion,
)
from scripts.lab.benchmark.requests.rivals import Rivals
from scripts.lab.benchmark.simulate import SHARE, STUDY_OVERHEAD_BYTES
from scripts.lab.sim.engine_loop import SimConfig

PAIR = "math-7b+skywork-1.5b"
MAX_NUM_SEQS = 128  # what FlashEdge configures on a card
BURST_RATE = 0.7
"""Rate outside the burst, as a multiple of what the card serves."""

PAPER_CV = 1.09
LONG_CHATS = replace(DEFAULT, mu=5.5, mu_spread=0.6)
"""Median 245 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What arrives, and what the predictor was trained on."""

    about: str

    within_cv: float | None = PAPER_CV
    """Mean coefficient of variation within a prompt that sigma is scaled to. None: of the trace."""

    prior: LengthPrior = DEFAULT
    trained_on: LengthPrior | None = None
    """Of the predictor. None: the workload itself."""

    has_chats: bool = False
    """Whether long chats are mixed into the trace."""

    is_bursty: bool = False


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "cv 1.09": Workload(about="log-t lengths, dispersed as in the paper"),
        "cv 0.5": Workload(about="log-t lengths, half as dispersed", within_cv=0.5),
        "cv 0.08": Workload(about="log-t lengths, as the bundled pair's", within_cv=0.08),
        "uncorrelated": Workload(
            about="as cv 1.09, but long answers are no less certain than short ones",
            prior=replace(DEFAULT, correlation=0.0),
        ),
        "trace": Workload(about="problems of 1 to 10 real steps", within_cv=None),
        "trace and chats": Workload(
            about="half of them long chats", within_cv=None, has_chats=True
        ),
        "untrained": Workload(
            about="longer and other lengths than the predictor was trained on",
            within_cv=None,
            prior=SHIFTED,
            trained_on=DEFAULT,
        ),
        "burst": Workload(
            about="as cv 1.09, at 0.7 of the card's rate, and three times that for a while",
            is_bursty=True,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLoad:
    """The requests of one workload and seed, and all orders of them."""

    prompts: Prompts
    rivals: Rivals
    seed: int
    is_bursty: bool

    def draw_arrivals(self, per_s: float) -> NDArray[np.float64]:
        """When they arrive at so many a second; all at once for infinity.

        Other rates have the same arrivals, closer together.
        """
        count = len(self.prompts)
        if not np.isfinite(per_s):
            return np.zeros(count)
        if self.is_bursty:
            process = BurstyArrivals(rate=per_s)
            lasts_s = count / per_s / (1 + process.length * (process.factor - 1))
            return np.array(process.draw(lasts_s, Random(self.seed))[:count])
        gaps = np.random.default_rng([self.seed, 5]).exponential(1.0, count)
        times: NDArray[np.float64] = np.cumsum(gaps) / per_s
        return times


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load(RequestLoad):
    """A load of the simulated card."""

    capacity: float
    """Requests a second that the card finishes while its batch is full."""

    def build_case(self, rate: float) -> RequestCase:
        """The requests at this multiple of the capacity."""
        arrived_s = self.draw_arrivals(rate * self.capacity)
        count = len(arrived_s)
        return RequestCase(
            arrived_s=arrived_s,
            prompt_tokens=self.prompts.prompt_tokens[:count],
            output_tokens=self.prompts.output_tokens[:count],
        )


def build_load(name: str, count: int, seed: int, quality: Quality = PAPER) -> Load:
    """Draw a workload's requests for the simulated card. quality: of the predictions."""
    load = draw_load(name, count, seed, quality=quality)
    return Load(
        prompts=load.prompts,
        rivals=load.rivals,
        seed=seed,
        is_bursty=load.is_bursty,
        capacity=measure_capacity(load.prompts),
    )


def draw_load(
    name: str, count: int, seed: int, *, shrink: int = 1, quality: Quality = PAPER
) -> RequestLoad:
    """Draw a workload's requests. shrink: what all lengths are divided by. quality: of the
    predictions."""
    workload = WORKLOADS[name]
    if workload.within_cv is None and workload.trained_on is None:
        chats = LONG_CHATS if workload.has_chats else None
        prompts = draw_trace_prompts(count, seed, chats=chats)
        trained_on = summarize_prior(prompts)
    else:
        prior = _scale(workload.prior, workload.within_cv)
        prompts = draw_prompts(prior, count, seed, workload.about)
        trained_on = _scale(workload.trained_on, PAPER_CV) if workload.trained_on else prior
    if shrink > 1:
        prompts = shrink_prompts(prompts, shrink)
        longest = trained_on.max_tokens // shrink
        trained_on = replace(trained_on, mu=trained_on.mu - log(shrink), max_tokens=longest)
    rivals = Rivals(prompts, predict(prompts, trained_on, quality, seed), seed)
    return RequestLoad(prompts=prompts, rivals=rivals, seed=seed, is_bursty=workload.is_bursty)


def shrink_prompts(prompts: Prompts, by: int) -> Prompts:
    """The same prompts with all lengths divided, and rounded up. The dispersion stays."""
    dispersion = replace(prompts.dispersion, mean_tokens=prompts.dispersion.mean_tokens / by)
    return replace(
        prompts,
        mu=prompts.mu - log(by),
        max_tokens=prompts.max_tokens // by,
        prompt_tokens=-(-prompts.prompt_tokens // by),
        output_tokens=-(-prompts.output_tokens // by),
        dispersion=dispersion,
    )


def summarize_prior(prompts: Prompts) -> LengthPrior:
    """The prior that a predictor learns from these prompts: the moments of their parameters."""
    log_sigma = np.log(prompts.sigma)
    return LengthPrior(
        mu=float(prompts.mu.mean()),
        mu_spread=float(prompts.mu.std()),
        sigma=float(np.exp(log_sigma.mean())),
        sigma_spread=float(log_sigma.std()),
        correlation=float(np.corrcoef(prompts.mu, log_sigma)[0, 1]),
        max_tokens=prompts.max_tokens,
    )


def measure_capacity(prompts: Prompts) -> float:
    """Requests a second that the card finishes until half of them are done, all there at once."""
    count = len(prompts)
    case = RequestCase(
        arrived_s=np.zeros(count),
        prompt_tokens=prompts.prompt_tokens,
        output_tokens=prompts.output_tokens,
    )
    served = serve_by_events(case, build_engine(), order_by_arrival(count))
    return float(count / 2 / np.median(served.finished_s))


@cache
def build_engine() -> SimConfig:
    """The generator of 7B alone on a simulated RTX 4090, with all of the memory that it leaves."""
    shape = find_pair_shapes(find_pair(PAIR, load_config()), load_config())[0]
    card = CARDS["rtx4090"]
    room = round(card.memory_bytes * SHARE) - shape.weights_bytes - STUDY_OVERHEAD_BYTES
    return SimConfig(
        shape=shape,
        kv_bytes=room,
        device=card.build_device(OVERHEADS["typical"]),
        max_num_seqs=MAX_NUM_SEQS,
    )


@cache
def _scale(prior: LengthPrior, within_cv: float | None) -> LengthPrior:
    return prior if within_cv is None else scale_to_dispersion(prior, within_cv)
