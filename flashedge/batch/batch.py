"""Solve a batch of problems: several at a time, one record each, with an optional shared budget.

A shared budget is spent in rounds. In the first, every problem gets the same share. Each later
round divides what is left among the problems that ran out of tokens, by their uncertainty, and
continues their runs. Ref: arXiv 2412.20993 App. B.2, D.2 (allocation by certainty across programs).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from flashedge.batch.attempts import Attempt, Attempts, Stopping
from flashedge.batch.journal import BatchRecord, SheetJournal
from flashedge.errors import RequestError
from flashedge.files.problems import FileProblem
from flashedge.runtime.drive.tasks import run_workers
from flashedge.search.voting import BUDGET

LEAST_SHARE_TOKENS = 64
"""The smallest share for which a run is continued, unless less takes it to its cap. Chosen by hand:
with a tenth, runs would resume for a part of one step; with ten times as many, the rest of a small
budget would stay unspent."""
FIRST_JOBS = 3
"""Problems that run before the first result. Each result lets one more start, up to `jobs`. Many
that start together also end together, so the first result would come late; one alone would leave
the engines idle."""

Grade = Callable[[str, str], Awaitable[bool]]
"""(answer, right answer) -> whether they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget of committed tokens that all problems share. A run may exceed its share by the
    tokens of its last level. Failed and cancelled runs are not counted."""

    total_tokens: int
    cap_tokens: int | None = None
    """The most that one problem may spend. None allows it the whole budget."""

    def compute_claim(self, spent_tokens: int) -> int:
        """Compute the tokens that a problem may still spend."""
        return max(0, (self.cap_tokens or self.total_tokens) - spent_tokens)

    def split_evenly(self, num_problems: int) -> tuple[int, ...]:
        """Return (num_problems,) tokens. Raises RequestError if a problem would get none."""
        claim = Claim(wanted_tokens=self.compute_claim(0), certainty=None)
        shares = share_budget(self.total_tokens, [claim] * num_problems)
        if 0 in shares:
            raise RequestError(
                f"{self.total_tokens} tokens are too few: {num_problems} problems need one each",
                hint="raise --budget-tokens-total",
                param="budget_tokens_total",
            )
        return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one problem can use of the shared budget."""

    wanted_tokens: int
    """Tokens until the problem reaches its cap."""
    certainty: float | None
    """In [0, 1]. None where it is unknown, which counts as 0."""


def share_budget(left_tokens: int, claims: Sequence[Claim]) -> tuple[int, ...]:
    """Divide `left_tokens` among the claims, in proportion to 1 - certainty. This weight is at
    least 0.01, so that a certain problem gets a little too. No claim gets more than it wants; the
    others get the rest. Returns the tokens of each claim. They are rounded down, so a few may be
    left over. Ref: arXiv 2412.20993 App. B.2; the formula is ours."""
    weights = [max(0.01, 1.0 - (c.certainty or 0.0)) for c in claims]
    shares = [0] * len(claims)
    left, before = max(0, left_tokens), -1
    while left and before != sum(shares):
        unmet = [i for i, c in enumerate(claims) if shares[i] < c.wanted_tokens]
        total = math.fsum(weights[i] for i in unmet)
        before = sum(shares)
        for i in unmet:
            offer = int(left * weights[i] / total)
            shares[i] += min(offer, claims[i].wanted_tokens - shares[i])
        left -= sum(shares) - before
    return tuple(shares)


def top_up(left_tokens: int, claims: Sequence[Claim], least_tokens: int) -> tuple[int, ...]:
    """Divide like `share_budget`, but give no share smaller than `least_tokens`. A claim that wants
    less gets all that it wants. The most certain claims are left out, one after the other, until
    the shares of those that remain are large enough."""
    open_claims = [i for i, claim in enumerate(claims) if claim.wanted_tokens > 0]
    open_claims.sort(key=lambda i: claims[i].certainty or 0.0)
    while open_claims:
        shares = share_budget(left_tokens, [claims[i] for i in open_claims])
        minima = (min(least_tokens, claims[i].wanted_tokens) for i in open_claims)
        if all(share >= least for share, least in zip(shares, minima, strict=True)):
            given = dict(zip(open_claims, shares, strict=True))
            return tuple(given.get(i, 0) for i in range(len(claims)))
        open_claims.pop()
    return (0,) * len(claims)


class Batch:
    """Solves problems, and writes a record of each."""

    def __init__(
        self,
        problems: Sequence[FileProblem],
        attempts: Attempts,
        journal: SheetJournal[BatchRecord],
        grade: Grade,
        *,
        jobs: int,
        budget: Budget | None = None,
    ) -> None:
        """grade: judges the answers where the input has the right ones. jobs: most problems at a
        time. budget: None leaves each problem the limit of the attempts' settings."""
        self._problems = problems
        self._attempts = attempts
        self._journal = journal
        self._grade = grade
        self._jobs = jobs
        self._num_slots = min(FIRST_JOBS, jobs)
        self._slots = asyncio.Semaphore(self._num_slots)
        self._budget = budget
        self._shares: dict[int, int | None] = {}
        """The problems of this round by index, each with the most tokens of its tree, or None
        without a shared budget."""
        self._cut: dict[int, Attempt] = {}
        """Attempts that ran out of their share and may be continued."""
        self.is_stopping = False
        self.num_cancelled = 0
        """Runs that `run` cancelled because it was cancelled itself."""

    @property
    def tokens(self) -> int:
        """Committed tokens of all runs that are over."""
        waiting = sum(attempt.tokens or 0 for attempt in self._cut.values())
        return waiting + sum(record.tokens or 0 for record in self._journal.records.values())

    async def stop(self) -> None:
        """Start no more runs. `run` ends once the running ones are over."""
        self.is_stopping = True
        await self._attempts.stop()

    async def run(self) -> None:
        """Solve the problems that have no record yet. Cancelling this cancels the open runs too.
        Raises RequestError, DaemonError, EngineError, StoreError."""
        budget, count = self._budget, len(self._problems)
        shares = [None] * count if budget is None else budget.split_evenly(count)
        done = self._journal.records
        todo = [i for i, problem in enumerate(self._problems) if problem.id not in done]
        self._shares = {i: shares[i] for i in todo}
        try:
            while self._shares:
                await run_workers(self._jobs, self._solve_in_slot, self._shares)
                self._shares = {} if self.is_stopping else await self._plan_round()
        except asyncio.CancelledError:
            self.num_cancelled = await self._attempts.cancel_open()
            raise

    async def _solve_in_slot(self, index: int) -> None:
        with suppress(Stopping):
            async with self._slots:
                if not self.is_stopping:
                    await self._solve(index)
                if self._num_slots < self._jobs:  # each result adds a slot
                    self._num_slots += 1
                    self._slots.release()

    async def _solve(self, index: int) -> None:
        earlier = self._cut.get(index)
        text = self._problems[index].text
        attempt = await self._attempts.run(index, text, self._shares[index], earlier)
        if self._budget is not None and attempt.cut_by == BUDGET and attempt != earlier:
            self._cut[index] = attempt
            self._attempts.notify()
        else:
            self._cut.pop(index, None)
            await self._record(index, attempt)

    async def _plan_round(self) -> dict[int, int | None]:
        """Share what is left among the problems that ran out. Record those that get nothing."""
        if self._budget is None:
            return {}
        waiting = sorted(self._cut)
        claims = [
            Claim(
                wanted_tokens=self._budget.compute_claim(self._cut[i].tokens or 0),
                certainty=self._cut[i].certainty,
            )
            for i in waiting
        ]
        left = self._budget.total_tokens - self.tokens
        shares: dict[int, int | None] = {}
        for i, more in zip(waiting, top_up(left, claims, LEAST_SHARE_TOKENS), strict=True):
            if more:
                shares[i] = (self._cut[i].tokens or 0) + more
            else:
                await self._record(i, self._cut.pop(i))
        return shares

    async def _record(self, index: int, attempt: Attempt) -> None:
        problem, correct = self._problems[index], None
        if problem.answer is not None and attempt.error is None:
            given = attempt.answer
            correct = given is not None and await self._grade(given, problem.answer)
        self._journal.append(
            BatchRecord(
                id=problem.id,
                answer=attempt.answer,
                correct=correct,
                tokens=attempt.tokens,
                seconds=attempt.seconds,
                run=attempt.run,
                cut_by=attempt.cut_by,
                error=attempt.error,
            )
        )
        self._attempts.notify()
