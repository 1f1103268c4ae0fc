"""Run one problem on the daemon: adopt an existing run of it or start one, and await its end. The
batch names its runs (key, problem, attempt), so that it finds them again after a crash."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flashedge import errors
from flashedge.client import follow
from flashedge.client.async_client import AsyncClient
from flashedge.client.protocol import OPEN_STATUSES

T = TypeVar("T")

LOOK_S = 1.0
"""How often progress is asked for. The end of a run is told at once."""
MAX_DEATHS = 3
"""Runs of one problem that may end with the daemon before the problem counts as failed."""

BUDGET = "budget"
"""The `cut_by` of a run that ran out of tokens."""
BATCH_PRIORITY = 1
"""Batch work goes after chats and single searches."""


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
    """Includes the runs that it continues."""

    certainty: float | None = None
    cut_by: str | None = None
    error: Mapping[str, str] | None = None
    """{code, message} of a run that failed."""


class Stopping(Exception):
    """The batch ends, and this problem's run had not started."""


class Attempts:
    def __init__(
        self,
        client: AsyncClient,
        key: str,
        settings: Mapping[str, Any],
        *,
        retry_failed: bool = False,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """key: part of the runs' names. settings: fields of POST /v1/runs without the problem.
        retry_failed: whether a failed run of an earlier call does not count. notify: called after
        each look at a run."""
        self._client = client
        self._key = key
        self._settings = {"priority": BATCH_PRIORITY, **settings}
        self._retry_failed = retry_failed
        self.notify = notify
        self._losses = 0
        self._is_stopping = False
        self._dropped: set[str] = set()
        self._open: dict[str, int | None] = {}
        """The runs that are not over: the tokens of a running one, None for one that waits."""
        self._turn = asyncio.Lock()
        """Held while a run is submitted, so that runs arrive at the daemon in order."""
        self._submissions: set[asyncio.Task[dict[str, Any]]] = set()

    @property
    def running(self) -> list[int]:
        """The committed tokens so far of each run that was running when the batch last looked."""
        return [tokens for tokens in self._open.values() if tokens is not None]

    async def run(
        self, index: int, text: str, budget: int | None = None, earlier: Attempt | None = None
    ) -> Attempt:
        """Run the problem at position `index` of the input to its end.

        budget: most tokens of the whole tree, instead of the settings' limit. earlier: the attempt
        to continue; it is also the result if no later run has one.

        Of the runs that the daemon already has, the last finished one counts. Runs that ended with
        a crash, with the daemon, or with an earlier batch do not count.

        Raises RequestError when the daemon refuses the settings, DaemonError when it stays away,
        Stopping after `stop` if the run has not started by then.
        """
        best, number, deaths = earlier, 0 if earlier is None else earlier.number + 1, 0
        while True:
            name = f"run-{self._key}-{index}-{number}"
            async with self._turn:
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
        """Submit nothing more, and remove the runs that wait. Those that run go on to their end."""
        self._is_stopping = True
        await self._await_submissions()
        await asyncio.gather(*map(self._drop_waiting, list(self._open)))

    async def cancel_open(self) -> int:
        """Cancel the runs under way and return how many there were."""
        await self._await_submissions()
        names = sorted(self._open)
        await asyncio.gather(*(follow.cancel_quietly(self._client, name) for name in names))
        return len(names)

    # ------------------------------------------------------------ inner

    async def _await_submissions(self) -> None:
        """Let what is on its way arrive: a run can't be cancelled before it exists."""
        if self._submissions:
            await asyncio.wait(self._submissions, timeout=follow.CANCEL_TIMEOUT_S)

    async def _drop_waiting(self, name: str) -> None:
        with suppress(errors.FlashEdgeError):
            if (await self._client.run(name))["status"] == "queued":
                self._dropped.add(name)
                await follow.cancel_quietly(self._client, name)

    def _is_final(self, status: str, is_watched: bool, losses: int) -> bool:
        """Whether a run without a result ends its problem. A cancelled one does if somebody
        cancelled it while this batch watched it, and not the daemon's own stop."""
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
                # The earlier run's events are gone: start from the beginning.
                return await self._submit(name, text, budget, None)
            if isinstance(error, errors.ContextOverflow) or error.param in ("problem", "messages"):
                return {"code": error.code, "message": str(error)}
            raise
        return None

    async def _send(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Submit, to the end even if the caller is cancelled meanwhile. Raises Stopping."""
        if self._is_stopping:
            raise Stopping
        submission = asyncio.ensure_future(self._client.submit(body))
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)
        return await asyncio.shield(submission)

    async def _await_end(self, name: str) -> dict[str, Any]:
        """The run's object once it is over, without its events, which are most of a run's traffic.
        A run that was dropped leaves no trace. Raises Stopping for it."""
        self._open.setdefault(name, None)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            run = await self._retry(lambda: self._client.run(name, LOOK_S))
            if run["status"] not in OPEN_STATUSES:
                break
            is_running = run["status"] == "running"
            self._open[name] = (run.get("tree_tokens") or 0) if is_running else None
            self.notify()
            await asyncio.sleep(LOOK_S - (loop.time() - began))  # where the daemon did not wait
        self._open.pop(name)
        if name in self._dropped and run["status"] == "cancelled":
            with suppress(errors.FlashEdgeError):
                await self._client.delete(name)
            raise Stopping
        return run

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the daemon. Waits while its queue is full, and some seconds while it is away."""

        def count_loss() -> None:
            self._losses += 1

        try:
            return await follow.retry(call, follow.UNATTENDED, count_loss)
        except (errors.DaemonError, errors.EngineDead) as error:
            hint = "finished problems are kept: flashedge up, then the same command resumes"
            raise type(error)(str(error), hint=hint) from error


def _build_attempt(number: int, run: Mapping[str, Any], earlier: Attempt | None) -> Attempt:
    """The time includes that of `earlier`."""
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
