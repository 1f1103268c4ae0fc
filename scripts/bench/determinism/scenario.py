"""The requests that are compared, and what runs beside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from scripts.bench.determinism.core import Core, Job

VOCABULARY = range(3, 500)
"""Ids of the bundled generator that are no special tokens."""
SPREAD = 60
"""Steps over which requests arrive."""


def make_jobs(
    count: int, seed: int, *, max_tokens: int = 96, temperature: float = 1.0
) -> list[Job]:
    """Deterministic requests. Every fourth continues the prompt of the one before it."""
    draw = Random(seed)
    jobs: list[Job] = []
    for number in range(count):
        prompt = tuple(draw.choices(VOCABULARY, k=draw.randint(4, 140)))
        if number % 4 == 3:
            prompt = (*jobs[-1].prompt, *prompt[:40])
        jobs.append(
            Job(
                name=f"d{number}",
                prompt=prompt,
                max_tokens=draw.randint(max_tokens // 2, max_tokens),
                seed=number,
                temperature=temperature,
                top_k=draw.choice((0, 0, 40)),
                top_p=draw.choice((1.0, 0.95)),
            )
        )
    return jobs


def choose_evenly(total: int, percent: float) -> set[int]:
    """The places of a share of so many requests, spread evenly."""
    count = round(total * percent / 100)
    return {int(i * total / count) for i in range(count)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How requests fared beside others, compared with alone."""

    differ: int
    """Requests with other tokens."""
    logprobs_differ: int
    """Requests with another log-probability of a token, to the bit."""
    preemptions: int
    counters: dict[str, int]
    spans: list[tuple[int, int]]
    """See `find_spans`, for each request with other tokens."""
    same_tokens: int
    """Tokens up to the first other one, of all requests."""


def find_spans(one: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """How many tokens are the same before the first that differs, and between that and the second.
    Ref: arXiv 2601.17768 Fig. 6."""
    unequal = [i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    end = min(len(one), len(other))
    first, second = (*unequal, end, end)[:2]
    return first, max(0, second - first - 1)


def run_alone(core: Core, jobs: Sequence[Job]) -> list[Job]:
    done = [job.again(name=f"alone-{job.name}") for job in jobs]
    for job in done:
        core.run([job])
    return done


def run_loaded(
    core: Core, jobs: Sequence[Job], alone: Sequence[Job], others: int, *, seed: int, name: str
) -> Outcome:
    """Run the jobs in random order beside `others` plain requests, of which some have their
    prompts, while the KV quota goes up and down."""
    draw = Random(seed)
    done = [job.again(name=f"{name}-{job.name}", arrival=draw.randrange(SPREAD)) for job in jobs]
    plain = [
        Job(
            name=f"{name}-o{number}",
            prompt=draw.choice(jobs).prompt
            if number % 2
            else tuple(draw.choices(VOCABULARY, k=draw.randint(4, 140))),
            max_tokens=draw.randint(20, max(job.max_tokens for job in jobs)),
            seed=1000 + number,
            deterministic=False,
            arrival=draw.randrange(SPREAD // 2),
        )
        for number in range(others)
    ]
    scheduler = core.scheduler
    before = dict(scheduler.passes.counters), scheduler.view()["preemptions"]
    core.run([*done, *plain], between=move_quota(scheduler))
    scheduler.kv.set_quota(scheduler.view()["blocks_total"])
    counters = {key: n - before[0][key] for key, n in scheduler.passes.counters.items()}
    pairs = list(zip(alone, done, strict=True))
    spans = [(find_spans(a.tokens, b.tokens), a.tokens != b.tokens) for a, b in pairs]
    return Outcome(
        differ=sum(a.tokens != b.tokens for a, b in pairs),
        logprobs_differ=sum(a.logprobs != b.logprobs for a, b in pairs),
        preemptions=scheduler.view()["preemptions"] - before[1],
        counters=counters,
        spans=[span for span, differs in spans if differs],
        same_tokens=sum(first for (first, _), _ in spans),
    )


def move_quota(scheduler: Any, every: int = 20) -> Callable[[int], None]:
    """Between two steps: by turns give the requests half of what they hold, and all there is."""
    total = scheduler.view()["blocks_total"]

    def move(step: int) -> None:
        turn, rest = divmod(step, every)
        if rest == every - 1:
            scheduler.kv.set_quota(total if turn % 2 else scheduler.view()["blocks_used"] // 2)

    return move
