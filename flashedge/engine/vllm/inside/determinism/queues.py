"""Lets vLLM's scheduler see some of its requests only, for one step.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.request import Request, RequestStatus


@contextmanager
def show_only(
    scheduler: Any, shown: Collection[Request], tokens: int | None = None
) -> Iterator[list[Request]]:
    """Hide all requests of the scheduler but `shown`. Yields the running ones that are hidden.

    tokens: the most that the step may schedule; None: what vLLM allows. Hidden requests count
    towards the limit of running ones, and may be preempted meanwhile.
    """
    running, waiting, holding = scheduler.running, scheduler.waiting, scheduler.kv_holding_waiting
    limits = scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens
    keep = frozenset(shown)
    hidden = [request for request in running if request not in keep]
    scheduler.running = [request for request in running if request in keep]
    scheduler.waiting = _make_queue(scheduler, waiting, keep)
    scheduler.kv_holding_waiting = _make_queue(scheduler, holding, keep)
    scheduler.max_num_active_reqs -= len(hidden)
    if tokens is not None:
        scheduler.max_num_scheduled_tokens = tokens
    try:
        yield hidden
    finally:
        scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens = limits
        before = frozenset(running)
        added = [request for request in scheduler.running if request not in before]
        scheduler.running = [r for r in running if r.status is RequestStatus.RUNNING] + added
        scheduler.waiting = _put_back(waiting, keep, scheduler.waiting)
        scheduler.kv_holding_waiting = _put_back(holding, keep, scheduler.kv_holding_waiting)


@contextmanager
def limit_chunks(scheduler: Any, tokens: int) -> Iterator[None]:
    """Let vLLM's scheduler compute so many tokens of each prompt at most, for one step.

    vLLM ignores the limit where it sees one request: then the step's own limit has to do.
    """
    config = scheduler.scheduler_config
    before = config.long_prefill_token_threshold, scheduler.adaptive_long_prefill_threshold
    config.long_prefill_token_threshold = tokens
    scheduler.adaptive_long_prefill_threshold = False
    try:
        yield
    finally:
        config.long_prefill_token_threshold, scheduler.adaptive_long_prefill_threshold = before


def _make_queue(scheduler: Any, queue: Iterable[Request], keep: Collection[Request]) -> Any:
    made = create_request_queue(scheduler.policy)
    for request in queue:
        if request in keep:
            made.add_request(request)
    return made


def _put_back(queue: Any, shown: Collection[Request], left: Iterable[Request]) -> Any:
    """The queue after the step: what is left of the shown requests keeps its place, and what came
    in meanwhile goes first."""
    left = list(left)
    before, still = frozenset(queue), frozenset(left)
    kept = [request for request in queue if request not in shown or request in still]
    queue.clear()
    queue.extend([*(request for request in left if request not in before), *kept])
    return queue
