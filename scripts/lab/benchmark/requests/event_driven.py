"""Serves one load of single requests under an order of its waiting queue, from event to event.

The rules and times are those of the simulated engine's scheduler, in far fewer steps: between two
events every running request gains one token a step, so all these steps are computed at once. An
event is an arrival while the batch has room, an end, a prefill, or a shortage of blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scripts.lab.benchmark.load.timings import Timings
from scripts.lab.sim.engine_loop import SimConfig
from scripts.lab.sim.step_cost import estimate_decode_steps_s, estimate_sums_s

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestCase:
    """Requests in the order of their arrival. All arrays are (requests,)."""

    arrived_s: Floats
    prompt_tokens: Integers

    output_tokens: Integers
    """True lengths, at least 1. No scheduler but an oracle knows them."""

    def __post_init__(self) -> None:
        sizes = {len(self.arrived_s), len(self.prompt_tokens), len(self.output_tokens)}
        if len(sizes) != 1 or not len(self.arrived_s):
            raise ValueError(f"a case needs requests, in arrays of one length, not {sizes}")
        if (np.diff(self.arrived_s) < 0).any():
            raise ValueError("requests must stand in the order of their arrival")
        if min(self.output_tokens.min(), self.prompt_tokens.min()) < 1:
            raise ValueError("a request has at least one token of prompt and of output")

    def __len__(self) -> int:
        return len(self.arrived_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedCase:
    """When each request of a case was served. All arrays are (requests,) of virtual seconds."""

    started_s: Floats
    """Start of the step that first computed it."""

    first_token_s: Floats
    finished_s: Floats

    steps: int
    preemptions: int

    def build_timings(self, case: RequestCase) -> Timings:
        return Timings(
            arrived_s=case.arrived_s,
            started_s=self.started_s,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            output_tokens=case.output_tokens,
        )


def check_fits(case: RequestCase, config: SimConfig) -> None:
    """Raises ValueError where a request exceeds the model's context, or the KV does not hold a
    request of full length, so that it could never finish."""
    longest = int((case.prompt_tokens + case.output_tokens).max())
    if longest > config.max_model_len:
        raise ValueError(f"a request has {longest} tokens, the model's limit is smaller")
    if config.kv_bytes // config.block_bytes * config.block_tokens < config.max_model_len:
        raise ValueError(f"{config.kv_bytes} bytes of KV do not hold one request of full length")
    if config.max_num_seqs > config.max_batched_tokens:
        raise ValueError("a step must have room for a token of each sequence")


class WaitingOrder(Protocol):
    """Scores requests by their numbers in the case."""

    def score(self, waiting: Integers, now_s: float) -> Floats:
        """(len(waiting),) scores of these requests, the only ones that wait. Equal scores go by
        arrival."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedOrder:
    """Scores that do not change while requests wait."""

    scores: Floats
    """(requests,)"""

    def score(self, waiting: Integers, now_s: float) -> Floats:
        return self.scores[waiting]


def order_by_arrival(requests: int) -> FixedOrder:
    """First come, first served."""
    return FixedOrder(scores=np.zeros(requests))


def sort_waiting(
    order: WaitingOrder, waiting: Integers, now_s: float, most: int | None = None
) -> Integers:
    """Sort requests by score, equal ones by arrival.

    waiting: numbers in rising order. most: how many of the first are needed; None: all.
    """
    scores = order.score(waiting, now_s)
    if most is not None and most < len(waiting):
        bound = np.partition(scores, most - 1)[most - 1]
        near = scores <= bound
        waiting, scores = waiting[near], scores[near]
    return waiting[np.argsort(scores, kind="stable")][:most]


_NONE = np.zeros(0, dtype=np.int64)


def serve_by_events(case: RequestCase, config: SimConfig, order: WaitingOrder) -> ServedCase:
    """Serve a case. Raises ValueError where a request does not fit."""
    check_fits(case, config)
    return _Serving(case, config, order).run()


class _Serving:
    """The state of one case. `_running` and the three arrays after it are parallel, in any
    order."""

    def __init__(self, case: RequestCase, config: SimConfig, order: WaitingOrder) -> None:
        self._case, self._config, self._order = case, config, order
        self._quota = config.kv_bytes // config.block_bytes
        count = len(case)
        self._started_s, self._first_s, self._finished_s = (
            np.full(count, np.nan) for _ in range(3)
        )
        self._now_s = 0.0
        self._arrived = 0  # requests before this one have arrived
        self._steps = self._preemptions = 0
        self._is_waiting = np.zeros(count, dtype=bool)
        self._waiting = 0
        self._line = _NONE
        """The next requests to admit, as many as the batch has room for."""
        self._is_stale = True  # the line must be sorted again
        self._is_blocked = False  # the first of the line finds no memory
        self._kept_length = case.prompt_tokens.copy()
        """Tokens of each request that is not running. What it generated before it was preempted
        counts."""
        self._kept_left = case.output_tokens.copy()
        self._running = _NONE
        self._length = _NONE
        """Tokens, with the last one drawn."""
        self._computed = _NONE
        """Tokens whose KV is there."""
        self._left = _NONE
        """Tokens to draw."""
        self._is_prefilling = False  # whether a running request is not just decoding

    def run(self) -> ServedCase:
        while len(self._running) or self._waiting or self._arrived < len(self._case):
            self._receive()
            if not len(self._running) and not self._waiting:
                self._now_s = float(self._case.arrived_s[self._arrived])
            elif not self._skip_decodes():
                self._step()
        return ServedCase(
            started_s=self._started_s,
            first_token_s=self._first_s,
            finished_s=self._finished_s,
            steps=self._steps,
            preemptions=self._preemptions,
        )

    def _receive(self) -> None:
        """Let the requests in line that have arrived by now."""
        until = int(np.searchsorted(self._case.arrived_s, self._now_s, side="right"))
        if until > self._arrived:
            self._is_waiting[self._arrived : until] = True
            self._waiting += until - self._arrived
            self._arrived = until
            self._is_stale, self._is_blocked = True, False

    # ------------------------------------------------------------ many steps at once

    def _skip_decodes(self) -> bool:
        """Run the steps to the next event. False where the next step is itself one."""
        is_full = len(self._running) >= self._config.max_num_seqs
        can_admit = self._waiting and not is_full and not self._is_blocked
        if not len(self._running) or self._is_prefilling or can_admit:
            return False
        steps = self._count_fitting(int(self._left.min()))
        if not steps:
            return False
        took_s = estimate_decode_steps_s(
            self._config.device,
            self._config.shape,
            float(self._computed.sum()),
            len(self._running),
            steps,
        )
        ends_s = np.cumsum(np.concatenate(((self._now_s,), took_s)))[1:]
        if not is_full and self._arrived < len(self._case):
            steps = min(
                steps, int(np.searchsorted(ends_s, self._case.arrived_s[self._arrived])) + 1
            )
        self._now_s = float(ends_s[steps - 1])
        self._steps += steps
        for counter, sign in ((self._computed, 1), (self._length, 1), (self._left, -1)):
            counter += sign * steps
        self._finish()
        return True

    def _count_fitting(self, most: int) -> int:
        """How many further tokens of each running request have room for their KV, up to `most`."""
        if self._count_blocks(self._computed + most) <= self._quota:
            return most
        return bisect_right(
            range(1, most), self._quota, key=lambda more: self._count_blocks(self._computed + more)
        )

    def _count_blocks(self, tokens: Integers) -> int:
        return int((-(-tokens // self._config.block_tokens)).sum())

    # ------------------------------------------------------------ one step

    def _step(self) -> None:
        """One step that prefills, admits or runs out of blocks."""
        self._sort_line()
        room = self._config.max_batched_tokens
        new = self._length - self._computed
        used = self._count_blocks(self._computed + new)
        if new.sum() > room or used > self._quota:
            new, used, is_preempted = self._plan_scarce()
        else:
            is_preempted = False
        room -= int(new.sum())
        if not is_preempted:
            new = self._admit(new, room, used)
        is_in_step = new > 0
        after = self._computed + new
        self._now_s += estimate_sums_s(
            self._config.device,
            self._config.shape,
            attended=float((new * (self._computed + (new + 1) / 2)).sum()),
            new=float(new.sum()),
            tokens=float(after[is_in_step].sum()),
            count=float(is_in_step.sum()),
        )
        self._steps += 1
        self._computed = after
        self._draw_tokens(is_in_step)

    def _sort_line(self) -> None:
        """Sort the waiting requests where something happened since they were sorted last."""
        room = self._config.max_num_seqs - len(self._running)
        if self._is_stale and self._waiting and room > 0:
            waiting = np.flatnonzero(self._is_waiting)
            self._line = sort_waiting(self._order, waiting, self._now_s, room)
            self._is_stale = False

    def _plan_scarce(self) -> tuple[Integers, int, bool]:
        """Plan the running requests one by one, in the order of arrival.

        The last ones are preempted where blocks run out. Returns (new tokens of each running one,
        blocks that they hold with them, whether one was preempted).
        """
        self._keep(np.argsort(self._running))
        size, room = self._config.block_tokens, self._config.max_batched_tokens
        computed = self._computed.tolist()
        needed = (self._length - self._computed).tolist()
        held = [-(-tokens // size) for tokens in computed]
        new = [0] * len(computed)
        used, alive, at = sum(held), len(computed), 0
        while at < alive and room > 0:
            tokens = min(needed[at], room)
            blocks = -(-(computed[at] + tokens) // size)
            while at < alive and used - held[at] + blocks > self._quota and blocks > held[at]:
                alive -= 1
                used -= held[alive]
            if at < alive:
                new[at], room = tokens, room - tokens
                used += blocks - held[at]
                held[at], at = blocks, at + 1
        self._preempt(alive)
        return np.array(new[:alive], dtype=np.int64), used, alive < len(computed)

    def _preempt(self, alive: int) -> None:
        """Put all running requests behind the first `alive` back in line, without their KV."""
        gone = self._running[alive:]
        if not len(gone):
            return
        self._kept_length[gone], self._kept_left[gone] = self._length[alive:], self._left[alive:]
        self._is_waiting[gone] = True
        self._waiting += len(gone)
        self._preemptions += len(gone)
        self._is_stale, self._is_blocked = True, False
        self._keep(np.arange(alive))

    def _admit(self, new: Integers, room: int, used: int) -> Integers:
        """Admit requests from the line while the batch and the blocks have room. Returns the new
        tokens of all running requests."""
        size, admitted, tokens = self._config.block_tokens, [], []
        places = self._config.max_num_seqs - len(self._running)
        self._is_blocked = False
        for number in self._line[:places].tolist():
            if room <= 0:
                break
            first = min(int(self._kept_length[number]), room)
            blocks = -(-first // size)
            if used + blocks > self._quota:
                self._is_blocked = True
                break
            used, room = used + blocks, room - first
            admitted.append(number)
            tokens.append(first)
        if not admitted:
            return new
        self._line = self._line[len(admitted) :]
        entering = np.array(admitted, dtype=np.int64)
        self._is_waiting[entering] = False
        self._waiting -= len(admitted)
        fresh = entering[np.isnan(self._started_s[entering])]
        self._started_s[fresh] = self._now_s
        self._running = np.concatenate((self._running, entering))
        self._length = np.concatenate((self._length, self._kept_length[entering]))
        self._computed = np.concatenate((self._computed, np.zeros(len(admitted), dtype=np.int64)))
        self._left = np.concatenate((self._left, self._kept_left[entering]))
        return np.concatenate((new, np.array(tokens, dtype=np.int64)))

    def _draw_tokens(self, is_in_step: NDArray[np.bool_]) -> None:
        """Draw a token for each request of the step whose KV is complete."""
        is_complete = is_in_step & (self._computed == self._length)
        drawing = self._running[is_complete]
        first = drawing[np.isnan(self._first_s[drawing])]
        self._first_s[first] = self._now_s
        self._left = self._left - is_complete
        self._length = self._length + is_complete
        self._finish()
        lacks_more = self._length - self._computed > 1
        self._is_prefilling = bool((lacks_more | np.isnan(self._first_s[self._running])).any())

    def _finish(self) -> None:
        """Drop the requests that have all their tokens."""
        is_done = self._left == 0
        if is_done.any():
            self._finished_s[self._running[is_done]] = self._now_s
            self._is_stale, self._is_blocked = True, False
            self._keep(np.flatnonzero(~is_done))

    def _keep(self, places: Integers) -> None:
        """Keep the running requests at these places, in this order."""
        self._running, self._length = self._running[places], self._length[places]
        self._computed, self._left = self._computed[places], self._left[places]
