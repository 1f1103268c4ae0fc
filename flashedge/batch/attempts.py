"""Run one problem on the daemon: adopt an existing run of it or start one, and await its end.

The batch names its runs (key, problem, attempt). After a crash it finds the runs that the daemon
accepted, and submitting one name twice starts one run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.follow import OPEN_STATUSES
from flashedge.errors import ContextOverflow, DaemonError, EngineDead, NotFound, RequestError

T = TypeVar("T")

MIN_POLL_S = 0.05
MAX_POLL_S = 1.0
MAX_DEATHS = 3
"""Runs of one problem that may end with the daemon before the problem counts as failed."""

BUDGET = "budget"
BATCH_PRIORITY = 1
"""People who wait for an answer go before a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a problem, after its end."""

    number: int
    """Earlier runs of the same problem."""

    run: str | None
    """The run's id. None when the daemon refused the problem."""

    answer: str | None = None
    tokens: int | None = None
    """Committed tokens of the whole tree."""

    seconds: float | None = None
    """Time of the run and of the runs that it continues."""

    certainty: float | None = None
    cut_by: str | None = None
    """What ended the run early, such as "budget"."""

    error: Mapping[str, str] | None = None
    """{code, message} of a run that failed."""


class Attempts:
    """The runs of one batch's problems."""

    def __init__(
        self,
        client: AsyncClient,
        key: str,
        settings: Mapping[str, Any],
        *,
        priority: int = BATCH_PRIORITY,
        retry_failed: bool = False,
    ) -> None:
        """Prepare runs named with `key`.

        `settings` are the fields of POST /v1/runs without problem and priority. With
        `retry_failed`, a failed run of an earlier call does not count.
        """
        self._client = client
        self._key = key
        self._settings = settings
        self._priority = priority
        self._retry_failed = retry_failed
        self._losses = 0
        self._open: set[str] = set()
        self._submissions: set[asyncio.Task[dict[str, Any]]] = set()

    async def run(
        self, index: int, text: str, budget: int | None = None, earlier: Attempt | None = None
    ) -> Attempt:
        """Run the problem at position `index` of the input to its end.

        `budget` limits the tokens of the whole tree, instead of the settings' limit. `earlier` is
        the attempt to continue; it is also the result if no later run has one.

        Of the runs that the daemon already has, the last finished one counts. Runs that ended with
        a crash, with the daemon, or with an earlier batch do not count.

        Raises RequestError when the daemon refuses the settings, DaemonError when it stays away.
        """
        best, number, deaths = earlier, 0 if earlier is None else earlier.number + 1, 0
        while True:
            name = f"run-{self._key}-{index}-{number}"
            run, losses = await self._find(name), self._losses
            is_watched = run is None or run["status"] in OPEN_STATUSES
            if run is None:
                if best is not earlier:
                    assert best is not None
                    return best
                refusal = await self._submit(name, text, budget, earlier)
                if refusal is not None:
                    return Attempt(number=number, run=None, error=refusal)
            if is_watched:
                run = await self._await_end(name)
            assert run is not None
            attempt = _build_attempt(number, run, best)
            if attempt.error is None:
                if is_watched or attempt.cut_by != BUDGET:
                    return attempt
                best = attempt  # a later run may continue it
            else:
                deaths += is_watched
                if deaths == MAX_DEATHS or self._is_final(run["status"], is_watched, losses):
                    return best or attempt
            number += 1

    async def cancel_open(self) -> int:
        """Cancel the runs under way and return how many there were.

        A submission that is on its way arrives first: its run can't be cancelled before it exists.
        """
        if self._submissions:
            await asyncio.wait(self._submissions, timeout=follow.CANCEL_TIMEOUT_S)
        names = sorted(self._open)
        await asyncio.gather(*(follow.cancel_quietly(self._client, name) for name in names))
        return len(names)

    # ------------------------------------------------------------ inner

    def _is_final(self, status: str, is_watched: bool, losses: int) -> bool:
        """Whether a run without a result ends its problem.

        A cancelled run does if somebody cancelled it while this batch watched it. If the daemon was
        lost meanwhile, the daemon's own stop cancelled it.
        """
        if status == "failed":
            return is_watched or not self._retry_failed
        return status == "cancelled" and is_watched and losses == self._losses

    async def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._retry(lambda: self._client.run(name))
        except NotFound:
            return None

    async def _submit(
        self, name: str, text: str, budget: int | None, earlier: Attempt | None
    ) -> dict[str, str] | None:
        """Start the run. Returns the error if the daemon refuses this problem."""
        body = {**self._settings, "priority": self._priority, "problem": text, "id": name}
        if budget is not None:
            body["token_budget"] = budget
        if earlier is not None:
            body["continues"] = earlier.run
        self._open.add(name)
        try:
            await self._retry(lambda: self._send(body))
        except RequestError as error:
            self._open.discard(name)
            if error.param == "continues" or (earlier is not None and isinstance(error, NotFound)):
                # The earlier run's events are gone: start from the beginning.
                return await self._submit(name, text, budget, None)
            if isinstance(error, ContextOverflow) or error.param in ("problem", "messages"):
                return {"code": error.code, "message": str(error)}
            raise
        return None

    async def _send(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Submit, to the end even if the caller is cancelled meanwhile."""
        submission = asyncio.ensure_future(self._client.submit(body))
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)
        return await asyncio.shield(submission)

    async def _await_end(self, name: str) -> dict[str, Any]:
        """The run's object once the run is over.

        It polls, since a batch needs no events and they are most of a run's traffic.
        """
        self._open.add(name)
        pause_s = MIN_POLL_S
        while True:
            run = await self._retry(lambda: self._client.run(name))
            if run["status"] not in OPEN_STATUSES:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, MAX_POLL_S)
        self._open.discard(name)
        return run

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the daemon. Waits while its queue is full, and some seconds while it is away."""
        try:
            return await follow.retry(call, follow.UNATTENDED, self._count_loss)
        except (DaemonError, EngineDead) as error:
            hint = "finished problems are kept: flashedge up, then the same command resumes"
            raise type(error)(str(error), hint=hint) from error

    def _count_loss(self) -> None:
        self._losses += 1


def _build_attempt(number: int, run: Mapping[str, Any], earlier: Attempt | None) -> Attempt:
    """The attempt of a run's object. Its time includes that of `earlier`."""
    status = run["status"]
    if status != "finished":
        error = run.get("error") or {}
        code, message = error.get("code") or status, error.get("message") or status
        return Attempt(number=number, run=run["id"], error={"code": code, "message": message})
    attempt = Attempt(
        number=number,
        run=run["id"],
        answer=run.get("answer"),
        tokens=run["usage"]["tree_tokens"],
        seconds=run["timing"]["total_s"],
        certainty=run.get("certainty"),
        cut_by=run.get("cut_by"),
    )
    if earlier is not None and earlier.seconds is not None and attempt.seconds is not None:
        return replace(attempt, seconds=earlier.seconds + attempt.seconds)
    return attempt
