"""Run one problem on the daemon: find an existing run of it or start one, and await its end.

A run's id holds the batch's key, the problem's index and the attempt's number, so that a batch
finds its runs again after a crash.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flashedge import errors
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import OPEN_STATUSES
from flashedge.search.voting import BUDGET

T = TypeVar("T")

LOOK_S = 1.0
"""Seconds between two reports of a run's progress. The run's end is reported at once. Chosen by
hand: each report is a request to the daemon, and at ten times as much the progress bar jumps."""
MAX_DEATHS = 3
"""A problem counts as failed when the daemon has ended during this many of its runs. With 1 a
restart of the daemon would fail every open problem; without a limit, a problem that kills the
daemon would be tried forever."""
BATCH_PRIORITY = 1
"""The priority of a batch's runs, unless the settings have another. Chats and single searches have
0 and go before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of a problem, after its end."""

    number: int
    """How many runs of the same problem came before."""
    run: str | None
    """The run's id. None when the daemon refused the problem."""
    answer: str | None = None
    tokens: int | None = None
    """Committed tokens of the whole tree."""
    seconds: float | None = None
    """Time of this run and of the finished ones before it, without the queue."""
    certainty: float | None = None
    """In [0, 1]. None where the search does not measure it."""
    cut_by: str | None = None
    """What ended the search early (see `Finish.cut_by`)."""
    error: Mapping[str, str] | None = None
    """{code, message} of a run that did not finish or was refused."""


class Stopping(Exception):
    """`stop` was called before this problem's run started."""


class Attempts:
    """The runs of one batch's problems on the daemon."""

    def __init__(
        self,
        client: AsyncClient,
        key: str,
        settings: Mapping[str, Any],
        *,
        retry_failed: bool = False,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """key: part of the runs' ids. settings: fields of POST /v1/runs without the problem.
        retry_failed: whether to repeat a run that failed in an earlier batch with this key. notify:
        called after each report of a run's progress."""
        self._client = client
        self._key = key
        self._settings = {"priority": BATCH_PRIORITY, **settings}
        self._retry_failed = retry_failed
        self.notify = notify
        self._losses = 0
        """How often the daemon did not answer."""
        self._is_stopping = False
        self._dropped: set[str] = set()
        """Runs that `stop` cancelled while they waited."""
        self._open: dict[str, int | None] = {}
        """The runs that are not over: the tokens of a running one, None for one that waits."""
        self._submit_lock = asyncio.Lock()
        """Held while a run is submitted, so that runs arrive at the daemon in order."""
        self._submissions: set[asyncio.Task[dict[str, Any]]] = set()

    @property
    def running_tokens(self) -> list[int]:
        """The committed tokens of each running run, as last reported."""
        return [tokens for tokens in self._open.values() if tokens is not None]

    async def run(
        self, index: int, text: str, budget: int | None = None, earlier: Attempt | None = None
    ) -> Attempt:
        """Run the problem at position `index` of the input to its end.

        budget: most tokens of the whole tree, instead of the settings' limit. earlier: the attempt
        to continue; it is also the result if no later run finishes.

        The daemon may have runs of the problem from an earlier batch with this key. An open one is
        awaited. A finished one is the result, and so is a failed one without `retry_failed`.
        Interrupted and cancelled ones are repeated.

        Raises RequestError when the daemon refuses the settings, DaemonError or EngineDead when the
        daemon or an engine stays away, Stopping if the run has not started when `stop` is called.
        """
        best, number, deaths = earlier, 0 if earlier is None else earlier.number + 1, 0
        while True:
            name = f"run-{self._key}-{index}-{number}"
            async with self._submit_lock:
                run, losses = await self._find(name), self._losses
                if run is None:
                    if best is not earlier:
                        assert best is not None
                        return best
                    refusal = await self._submit(name, text, budget, earlier)
                    if refusal is not None:
                        return Attempt(number=number, run=None, error=refusal)
            is_watched = run is None or run["status"] in OPEN_STATUSES
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

    async def stop(self) -> None:
        """Submit nothing more, and remove the waiting runs. The running ones go on to their end."""
        self._is_stopping = True
        await self._await_submissions()
        await asyncio.gather(*map(self._drop_waiting, list(self._open)))

    async def cancel_open(self) -> int:
        """Cancel the open runs and return how many were cancelled."""
        await self._await_submissions()
        cancels = [follow.cancel_quietly(self._client, name) for name in sorted(self._open)]
        return sum(await asyncio.gather(*cancels))

    async def _await_submissions(self) -> None:
        """Wait for open submissions, since a run can't be cancelled before it exists."""
        if self._submissions:
            await asyncio.wait(self._submissions, timeout=follow.CANCEL_TIMEOUT_S)

    async def _drop_waiting(self, name: str) -> None:
        with suppress(errors.FlashEdgeError):
            if (await self._client.run(name))["status"] == "queued":
                self._dropped.add(name)
                await follow.cancel_quietly(self._client, name)

    def _is_final(self, status: str, is_watched: bool, losses: int) -> bool:
        """Whether an unfinished run ends its problem. A cancelled one does if a user cancelled it
        while this batch watched it. If the daemon was lost since `losses` were counted, its own
        stop may have cancelled the run."""
        if status == "failed":
            return is_watched or not self._retry_failed
        return status == "cancelled" and is_watched and losses == self._losses

    async def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._retry(lambda: self._client.run(name))
        except errors.NotFound:
            return None

    async def _submit(
        self, name: str, text: str, budget: int | None, earlier: Attempt | None
    ) -> dict[str, str] | None:
        body = {**self._settings, "problem": text, "id": name}
        if budget is not None:
            body["token_budget"] = budget
        if earlier is not None:
            body["continues"] = earlier.run
        self._open[name] = None
        try:
            await self._retry(lambda: self._send(body))
        except errors.RequestError as error:
            self._open.pop(name)
            is_gone = earlier is not None and isinstance(error, errors.NotFound)
            if error.param == "continues" or is_gone:
                # The earlier run can no longer be continued: start from the beginning.
                return await self._submit(name, text, budget, None)
            if isinstance(error, errors.ContextOverflow) or error.param in ("problem", "messages"):
                return {"code": error.code, "message": str(error)}
            raise
        return None

    async def _send(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a run. The submission completes even if the caller is cancelled. Raises
        Stopping."""
        if self._is_stopping:
            raise Stopping
        submission = asyncio.ensure_future(self._client.submit(body))
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)
        return await asyncio.shield(submission)

    async def _await_end(self, name: str) -> dict[str, Any]:
        """Return the run's object once it is over. Polls instead of reading the events, which are
        most of a run's traffic. A run that somebody deletes counts as cancelled. Deletes a run that
        `stop` dropped, and raises Stopping for it."""
        self._open.setdefault(name, None)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                run = await self._retry(lambda: self._client.run(name, LOOK_S))
            except errors.NotFound as error:
                run = {"id": name, "status": "cancelled", "error": {"message": str(error)}}
            if run["status"] not in OPEN_STATUSES:
                break
            is_running = run["status"] == "running"
            self._open[name] = (run.get("tree_tokens") or 0) if is_running else None
            self.notify()
            await asyncio.sleep(LOOK_S - (loop.time() - began))  # the daemon may answer earlier
        self._open.pop(name)
        if name in self._dropped and run["status"] == "cancelled":
            with suppress(errors.FlashEdgeError):
                await self._client.delete(name)
            raise Stopping
        return run

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the daemon. Waits while its queue is full, and for some seconds while it is away."""

        def count_loss() -> None:
            self._losses += 1

        try:
            return await follow.retry(call, follow.UNATTENDED, count_loss)
        except (errors.DaemonError, errors.EngineDead) as error:
            hint = "finished problems are kept: run flashedge up, and the same command resumes"
            raise type(error)(str(error), hint=hint) from error


def _build_attempt(number: int, run: Mapping[str, Any], earlier: Attempt | None) -> Attempt:
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
