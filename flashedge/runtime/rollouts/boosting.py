"""Boosting in the daemon: how many rollouts each MCTS run that asks for it may have in flight.

Rollouts are divided again when a run arrives or ends, when a rollout ends, and every `POLL_S`
seconds. The engines are asked for their load only where more rollouts would gain if there was room,
since asking took 2 % of a core. A run's driver gets its share as an `Allowance`. It is stored, so
that the run can be replayed (`replay.py`).

Ref: arXiv 2604.00510 §4.5 (Algorithm 1), with a limit of our own
(`scheduling/rollouts/limiter.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from flashedge.engine.base import EngineView, Generator, Verifier
from flashedge.engine.platform import daemon_has_own_processor, engines_have_own_processors
from flashedge.errors import EngineError
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.run_state import Rollouts, RunState
from flashedge.scheduling.costs import MeasuredCurve
from flashedge.scheduling.rollouts.allocation import (
    Allocation,
    Allocator,
    BoostState,
    RolloutCandidate,
)
from flashedge.scheduling.rollouts.limiter import (
    IDLE,
    LEVEL_TOKENS,
    EngineLoad,
    Limit,
    RolloutCost,
    RolloutLimiter,
)

POLL_S = 0.25
"""Seconds between two polls of the engines while boosted runs go on. Chosen by hand: other requests
wait for boosts to end for up to this long, and users would notice ten times as much."""
OTHERS_POLLS = 2
"""Polls in a row after which sequences of others count. An engine goes on with cancelled ones for a
moment, so those of a single poll may be ours."""
KEPT_SHARE = 0.1
"""Share of an engine's KV and batch that boosting leaves free for what comes before the next poll.
Chosen by hand: a hundredth does not hold one more path, and all would leave nothing to boost."""
MIN_SAMPLE_TOKENS = 500
"""Fewest tokens from which the daemon's time for a token is estimated. Chosen by hand: a handful
would be ruled by one slow event."""
MAX_SAMPLE_TOKENS = 5_000
"""Older samples are scaled down to this many tokens, so that the estimate follows changes. Chosen
by hand: a card draws as many in some seconds."""

Allow = Callable[[int, int], None]
"""Tells a run how many rollouts it may have in flight, and how many all runs may have."""


class BoostedEngines(Protocol):
    """What boosting asks of the engines of a pair."""

    @property
    def name(self) -> str: ...
    @property
    def rollout_cost(self) -> RolloutCost | None: ...
    @property
    def max_sequences(self) -> int: ...
    async def views(self) -> Mapping[str, EngineView]:
        """Read the views of "generator" and "verifier". Raises EngineError."""


class Boosting:
    """Divides the rollouts in flight among the boosted runs of each pair."""

    def __init__(
        self,
        *,
        allocator: Allocator | None = None,
        limiter: RolloutLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
        daemon: DaemonTime | None = None,
    ) -> None:
        self._allocator = allocator or Allocator()
        self._limiter = limiter or RolloutLimiter()
        self._clock = clock
        self._daemon_time = daemon or DaemonTime(lambda: 0)
        self._pairs: dict[str, _PairBoosting] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.running_s = self.open_s = 0.0
        """Seconds with a boosted run, and seconds in which one might have several rollouts."""
        self._counted_s: float | None = None

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @contextmanager
    def join(self, run: RunState, engines: BoostedEngines, allow: Allow) -> Iterator[None]:
        """Boost a run for the length of the block. It starts with one rollout in flight. Does
        nothing for a run that is not boosted."""
        if run.rollouts is None:
            yield
            return
        pair = self._pairs.setdefault(engines.name, _PairBoosting(engines))
        pair.engines = engines
        pair.runs[run.id] = run.rollouts, allow
        pair.granted[run.id] = 0
        self._divide(pair)
        self._look_soon()
        try:
            yield
        finally:
            self._count_time()
            del pair.runs[run.id], pair.granted[run.id]
            if not pair.runs:
                del self._pairs[engines.name]
            self._count_time()  # the time until the next run does not count
            self._look_soon()

    def note_event(self, run: RunState) -> None:
        if run.rollouts is not None and run.rollouts.has_changed:
            self._look_soon()

    def list_states(self) -> tuple[BoostState, ...]:
        return tuple(
            BoostState(
                pair=name,
                budget=pair.limit.budget,
                reason=pair.limit.reason,
                runs=dict(pair.granted),
            )
            for name, pair in self._pairs.items()
        )

    def _look_soon(self) -> None:
        self._changed.set()
        if self._pairs and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look(), name="boosting")

    async def _look(self) -> None:
        """Divide at each change and every `POLL_S`. Look at the engines where that is needed."""
        due_s = self._clock() + POLL_S
        while self._pairs:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - self._clock())):
                    await self._changed.wait()
            self._changed.clear()
            if is_due := self._clock() >= due_s:
                due_s = self._clock() + POLL_S
                self._daemon_time.look()
            for pair in list(self._pairs.values()):
                must_ask = is_due or not pair.is_recent(self._clock())
                if must_ask and self._would_gain(pair):
                    await pair.look(self._clock)
                self._divide(pair)
        self._daemon_time.pause()

    def _would_gain(self, pair: _PairBoosting) -> bool:
        """Whether there would be more rollouts if the engines had room. False without runs: the
        last may have ended during a look at another pair."""
        return bool(pair.runs) and self._limit(pair, IDLE).budget > len(pair.runs)

    def _limit(self, pair: _PairBoosting, load: EngineLoad) -> Limit:
        cost = pair.find_cost(self._daemon_time.token_s)
        return self._limiter.limit(pair.candidates, self._allocator, load, cost)

    def _divide(self, pair: _PairBoosting) -> None:
        """Find the budget, and tell each run what changes: first those that get less."""
        self._count_time()
        if not pair.runs:
            return
        now_s = self._clock()
        is_recent = pair.is_recent(now_s)
        load = pair.load if is_recent else None
        limit = self._limit(pair, load or IDLE)
        if load is None:  # nobody gets more until it is known whether there is room
            most, reason = len(pair.runs), "the engines do not answer"
            if not is_recent:
                most = max(most, sum(pair.granted.values()))
                reason = "the engines are being asked"
            if limit.budget > most:
                limit = Limit(budget=most, reason=reason)
        pair.limit = limit
        changes = self._allocator.plan(pair.candidates, pair.granted, limit.budget, now_s)
        pair.granted.update(changes)
        for key, rollouts in changes.items():
            _, allow = pair.runs[key]
            allow(rollouts, limit.budget)

    def _count_time(self) -> None:
        now_s = self._clock()
        if self._counted_s is not None and self._pairs:
            passed_s = now_s - self._counted_s
            self.running_s += passed_s
            if any(sum(pair.granted.values()) > len(pair.runs) for pair in self._pairs.values()):
                self.open_s += passed_s
        self._counted_s = now_s if self._pairs else None


class _PairBoosting:
    """The boosted runs on one pair, and the last look at its engines."""

    def __init__(self, engines: BoostedEngines) -> None:
        self.engines = engines
        self.runs: dict[str, tuple[Rollouts, Allow]] = {}
        self.granted: Allocation = {}
        self.limit = Limit(budget=0, reason="nothing runs")
        self.load: EngineLoad | None = None
        """At the last look. None where the engines did not answer."""
        self._looked_s: float | None = None
        self._was_waiting = False
        """Whether a request waited for room in an engine at the last look. Only what waits at two
        looks in a row counts: room may come with the next step."""
        self._others: deque[int] = deque(maxlen=OTHERS_POLLS)
        """Sequences of other runs and requests at the last looks. The fewest count."""

    @property
    def candidates(self) -> Sequence[RolloutCandidate]:
        return [rollouts.candidate for rollouts, _ in self.runs.values()]

    def is_recent(self, now_s: float) -> bool:
        """Whether the last look still tells what the engines do."""
        return self._looked_s is not None and now_s - self._looked_s <= 2 * POLL_S

    async def look(self, clock: Callable[[], float]) -> None:
        most = self.engines.max_sequences
        try:
            views = await self.engines.views()
        except EngineError:
            views = {}
        now_s = clock()
        waits = any(_waits_for_room(view, most) for view in views.values())
        if not self.is_recent(now_s):  # nothing was cancelled a moment ago: one look is enough
            self._others.clear()
            self._was_waiting = waits
        self._others.append(self._count_others(views))
        self.load = None
        if views:
            self.load = EngineLoad(
                has_waiting=waits and self._was_waiting,
                others=min(self._others),
                free_kv_tokens=self._count_free_tokens(views),
                max_sequences=int(most * (1 - KEPT_SHARE)),
            )
        self._was_waiting, self._looked_s = waits, now_s

    def find_cost(self, daemon_s: float) -> RolloutCost | None:
        """Find the cost of a rollout with the lengths of these runs. None if it was not measured.
        daemon_s: seconds of the daemon for a token."""
        cost = self.engines.rollout_cost
        if cost is None:
            return None
        rollouts = [each for each, _ in self.runs.values()]
        levels = sum(each.levels for each in rollouts)
        paths = [each.candidate.path_tokens for each in rollouts]
        return replace(
            cost,
            context=max(1.0, sum(paths) / len(paths)),
            level_tokens=(
                sum(each.level_tokens for each in rollouts) / levels if levels else LEVEL_TOKENS
            ),
            daemon_s=daemon_s,
        )

    def _count_others(self, views: Mapping[str, EngineView]) -> int:
        generator = views.get("generator")
        running = generator.running + generator.waiting if generator is not None else 0
        return max(0, running - sum(rollouts.open_sequences for rollouts, _ in self.runs.values()))

    def _count_free_tokens(self, views: Mapping[str, EngineView]) -> float:
        """Count the tokens with room if each run had one rollout: free ones and those of boosts."""
        free = min(
            (view.quota_blocks * (1 - KEPT_SHARE) - view.blocks_used) * view.block_tokens
            for view in views.values()
        )
        boosts = sum(max(0, self.granted[run.key] - 1) * run.path_tokens for run in self.candidates)
        return max(0.0, free + boosts)


def _waits_for_room(view: EngineView, max_sequences: int) -> bool:
    """Whether requests wait and the engine's batch is full, or less than KEPT_SHARE of its KV
    memory is free."""
    is_short = view.quota_blocks * (1 - KEPT_SHARE) < view.blocks_used
    return view.waiting > 0 and (view.running >= max_sequences or is_short)


class DaemonTime:
    """Measures how long the daemon itself computes for each token, while boosted runs go on.

    Engines on the daemon's processors take this time in addition to their own; for other engines
    the longer of both counts (`RolloutCost`). Tokens of cancelled rollouts are not counted, so the
    time is an overestimate. The idea is ours, not the paper's.
    """

    def __init__(
        self, count_tokens: Callable[[], int], cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        """count_tokens: of all runs and plain requests so far. cpu_s: of this process so far."""
        self._count_tokens = count_tokens
        self._cpu_s = cpu_s
        self._since: tuple[float, int] | None = None
        self._spent_s = self._tokens = 0.0

    @property
    def token_s(self) -> float:
        """Seconds of a processor for a token of one sequence. 0 until enough was measured."""
        return self._spent_s / self._tokens if self._tokens >= MIN_SAMPLE_TOKENS else 0.0

    def look(self) -> None:
        """Count the processor time and the tokens since the last look. The first counts nothing."""
        cpu_s, tokens = self._cpu_s(), self._count_tokens()
        if self._since is not None:
            self._spent_s += cpu_s - self._since[0]
            self._tokens += tokens - self._since[1]
        self._since = cpu_s, tokens
        if self._tokens > MAX_SAMPLE_TOKENS:
            kept = MAX_SAMPLE_TOKENS / self._tokens
            self._spent_s *= kept
            self._tokens *= kept

    def pause(self) -> None:
        """Count until now, and not from now to the next look."""
        self.look()
        self._since = None


def build_rollout_cost(
    curves: Curves, generator: Generator, verifier: Verifier, threads: int
) -> RolloutCost | None:
    """Build what one more rollout costs. None unless both curves were measured, since an assumed
    speed must not make others wait. threads: of each engine on a CPU."""
    both = curves.generator, curves.verifier
    if not all(isinstance(curve, MeasuredCurve) for curve in both):
        return None
    has_own = "own" in {engine.health().kv_memory for engine in (generator, verifier)}
    return RolloutCost(
        generator=curves.generator,
        verifier=curves.verifier,
        shares_device=not (engines_have_own_processors(threads) or has_own),
        shares_daemon=not daemon_has_own_processor(threads),
    )
