"""Serves a load step by step, with the scheduler of the simulated engines.

This is the naive twin of `event_driven`, which must give the same times to the last bit.
"""

from __future__ import annotations

import numpy as np

from scripts.lab.benchmark.requests.case import RequestCase, ServedCase, check_fits
from scripts.lab.benchmark.requests.orders import WaitingOrder, sort_waiting
from scripts.lab.sim.blocks import BlockCache
from scripts.lab.sim.config import SimConfig
from scripts.lab.sim.scheduler import SimScheduler
from scripts.lab.sim.sequence import SimSequence
from scripts.lab.sim.step_cost import estimate_step_s


def serve_stepwise(case: RequestCase, config: SimConfig, order: WaitingOrder) -> ServedCase:
    """Serve a case. The waiting queue is sorted when a request arrives, ends or is preempted.

    No prefix is shared between requests. Raises ValueError where a request does not fit.
    """
    check_fits(case, config)
    scheduler = SimScheduler(
        BlockCache(config.kv_bytes // config.block_bytes, config.block_tokens, reuse=False),
        longest_tokens=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
    )
    count = len(case)
    started_s, first_s, finished_s = (np.full(count, np.nan) for _ in range(3))
    drawn = np.zeros(count, dtype=np.int64)
    now_s, arrived, left, steps = 0.0, 0, count, 0
    is_stale = True
    while left:
        while arrived < count and case.arrived_s[arrived] <= now_s:
            scheduler.add(
                SimSequence(
                    id=arrived,
                    tokens=[0] * int(case.prompt_tokens[arrived]),
                    program=str(arrived),
                )
            )
            arrived, is_stale = arrived + 1, True
        if not scheduler.running and not scheduler.waiting:
            now_s = float(case.arrived_s[arrived])
            continue
        if is_stale and scheduler.waiting and len(scheduler.running) < config.max_num_seqs:
            waiting = np.array(sorted(s.id for s in scheduler.waiting), dtype=np.int64)
            scheduler.rank_programs([str(i) for i in sort_waiting(order, waiting, now_s)])
            is_stale = False
        preemptions = scheduler.preemptions
        batch = scheduler.plan()
        is_stale |= scheduler.preemptions > preemptions
        for work in batch:
            if np.isnan(started_s[work.sequence.id]):
                started_s[work.sequence.id] = now_s
        now_s += estimate_step_s(config.device, config.shape, batch)
        steps += 1
        for work in batch:
            if not scheduler.complete(work):
                continue
            sequence = work.sequence
            if not drawn[sequence.id]:
                first_s[sequence.id] = now_s
            drawn[sequence.id] += 1
            sequence.tokens.append(0)
            if drawn[sequence.id] == case.output_tokens[sequence.id]:
                scheduler.remove(sequence)
                finished_s[sequence.id] = now_s
                left, is_stale = left - 1, True
    return ServedCase(
        started_s=started_s,
        first_token_s=first_s,
        finished_s=finished_s,
        steps=steps,
        preemptions=scheduler.preemptions,
    )
