"""A batch of problems: so many runs at a time, one record each, one budget for all if wanted.

A shared budget goes in rounds. At first every problem gets the same. What those leave over that end
early goes to those that their allotment cut short, the unsure first: their runs are continued, not
repeated. That ends when nobody is cut short or nothing is left.
Ref: arXiv 2412.20993 App. B.2, D.2 (allocation by certainty across programs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from flashedge.batch.attempts import BUDGET, Attempt, Attempts
from flashedge.batch.ledger import Ledger
from flashedge.batch.record import Record
from flashedge.certainty.shared_budget import Claim, share_budget, top_up
from flashedge.errors import RequestError
from flashedge.files.problems import FileProblem, ProblemId
from flashedge.runtime.drive.task_groups import raise_first_error

LEAST_GRANT_TOKENS = 64

Grade = Callable[[str, str], Awaitable[bool]]
"""(answer, right answer) -> whether they say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """total_tokens: of all problems together; cap_tokens: of one, None for no such limit.

    Both count committed tokens, of which a run may spend more than it was given by what its last
    level commits. Failed and cancelled runs are not counted.
    """

    total_tokens: int
    cap_tokens: int | None = None

    def wanted(self, spent_tokens: int) -> int:
        """What a problem may still want."""
        return max(0, (self.cap_tokens or self.total_tokens) - spent_tokens)

    def first_shares(self, num_problems: int) -> tuple[int, ...]:
        """(num_problems,) tokens. Raises RequestError when there is not one for each."""
        claim = Claim(wanted_tokens=self.wanted(0), certainty=None)
        shares = share_budget(self.total_tokens, [claim] * num_problems)
        if 0 in shares:
            raise RequestError(
                f"{self.total_tokens} tokens are not one for each of {num_problems} problems",
                hint="raise --budget-tokens-total",
                param="budget_tokens_total",
            )
        return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """index: the problem's place in the input; tokens: its budget; earlier: what to continue."""

    index: int
    tokens: int | None
    earlier: Attempt | None = None


class Batch:
    """tell: called after each record with the records so far."""

    def __init__(
        self,
        problems: Sequence[FileProblem],
        attempts: Attempts,
        ledger: Ledger,
        grade: Grade,
        *,
        jobs: int,
        budget: Budget | None = None,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._problems = problems
        self._attempts = attempts
        self._ledger = ledger
        self._grade = grade
        self._jobs = jobs
        self._budget = budget
        self._tell = tell
        self._cut: dict[int, Attempt] = {}

    @property
    def tokens(self) -> int:
        """Spent so far, on problems that are over and on those that wait for more."""
        waiting = sum(attempt.tokens or 0 for attempt in self._cut.values())
        return waiting + sum(r.tokens or 0 for r in self._ledger.records.values())

    async def run(self) -> None:
        """Solve what has no record yet. Raises what stops the batch; records are kept.

        Raises RequestError, DaemonError, EngineError, StoreError. Cancelled: cancels open runs.
        """
        budget, count = self._budget, len(self._problems)
        shares = [None] * count if budget is None else budget.first_shares(count)
        done = self._ledger.records
        todo = [i for i, problem in enumerate(self._problems) if problem.id not in done]
        work = [Work(index=i, tokens=shares[i]) for i in todo]
        try:
            while work:
                await self._round(work)
                work = await self._next_round()
        except asyncio.CancelledError:
            await self._attempts.cancel_open()
            raise

    # ------------------------------------------------------------ inner

    async def _round(self, work: Iterable[Work]) -> None:
        left = iter(work)

        async def worker() -> None:
            for item in left:
                await self._solve(item)

        with raise_first_error():
            async with asyncio.TaskGroup() as group:
                for _ in range(self._jobs):
                    group.create_task(worker())

    async def _solve(self, work: Work) -> None:
        text = self._problems[work.index].text
        attempt = await self._attempts.run(work.index, text, work.tokens, work.earlier)
        waits = self._budget is not None and attempt.cut_by == BUDGET and attempt != work.earlier
        if waits:
            self._cut[work.index] = attempt
            self._tell()
        else:
            self._cut.pop(work.index, None)
            await self._settle(work.index, attempt)

    async def _next_round(self) -> list[Work]:
        """Who is cut short and gets more; for the others it was the last round."""
        if self._budget is None:
            return []
        waiting = sorted(self._cut)
        claims = [_claim(self._cut[i], self._budget) for i in waiting]
        left = self._budget.total_tokens - self.tokens
        grants = dict(zip(waiting, top_up(left, claims, LEAST_GRANT_TOKENS), strict=True))
        work = []
        for i, more in grants.items():
            attempt = self._cut[i]
            if more:
                work.append(Work(index=i, tokens=(attempt.tokens or 0) + more, earlier=attempt))
            else:
                del self._cut[i]
                await self._settle(i, attempt)
        return work

    async def _settle(self, index: int, attempt: Attempt) -> None:
        problem, correct = self._problems[index], None
        if problem.answer is not None and attempt.error is None:
            given = attempt.answer
            correct = given is not None and await self._grade(given, problem.answer)
        self._ledger.append(
            Record(
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
        self._tell()


def _claim(attempt: Attempt, budget: Budget) -> Claim:
    wanted = budget.wanted(attempt.tokens or 0)
    return Claim(wanted_tokens=wanted, certainty=attempt.certainty)


def failed(ledger: Ledger) -> list[ProblemId]:
    return [i for i, record in ledger.records.items() if record.error is not None]
