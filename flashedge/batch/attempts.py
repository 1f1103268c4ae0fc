"""One problem through the daemon: adopted where a run of it is there, else started, and awaited.

The batch names its runs (key, problem, attempt), so after any crash it finds those that the daemon
took, and asking twice for one starts one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flashedge.client.async_client import AsyncClient
from flashedge.errors import (
    ContextOverflow,
    DaemonError,
    EngineDead,
    FlashEdgeError,
    NotFound,
    QueueFull,
    RequestError,
)

T = TypeVar("T")

RETRY_DELAYS_S = (0.25, 0.5, 1.0, 2.0, 4.0)
LEAST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
CANCEL_LIMIT_S = 5.0
MAX_DEATHS = 3  # of the daemon under one problem
OPEN = ("queued", "running")
BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run of a problem that is over. tokens, answer, certainty, cut_by: as its object tells;
    seconds: with those of the runs that it continues; error: {code, message} of one that failed.
    """

    number: int
    run: str | None
    answer: str | None = None
    tokens: int | None = None
    seconds: float | None = None
    certainty: float | None = None
    cut_by: str | None = None
    error: Mapping[str, str] | None = None


class Attempts:
    """settings: the fields of POST /v1/runs, but the problem; retry_failed: a run that is found
    failed is no reason not to try again."""

    def __init__(
        self,
        client: AsyncClient,
        key: str,
        settings: Mapping[str, Any],
        *,
        retry_failed: bool = False,
    ) -> None:
        self._client = client
        self._key = key
        self._settings = settings
        self._retry_failed = retry_failed
        self._losses = 0
        self._open: set[str] = set()

    async def run(
        self, index: int, text: str, budget: int | None = None, earlier: Attempt | None = None
    ) -> Attempt:
        """The problem's next run to its end. index: its place in the input; budget: tokens of the
        whole tree, else what the settings say; earlier: the attempt to take up, and the answer if
        nothing more comes of it.

        Of runs found in the daemon the last finished one counts; those that a crash, a stop of the
        daemon or of an earlier batch ended count as never made.

        Raises RequestError when the settings are refused, DaemonError when the daemon is gone.
        """
        found, number, deaths = earlier, 0 if earlier is None else earlier.number + 1, 0
        while True:
            name = f"run-{self._key}-{index}-{number}"
            seen, losses = await self._find(name), self._losses
            watched = seen is None or seen["status"] in OPEN
            if seen is None:
                if found is not earlier:
                    assert found is not None
                    return found
                refused = await self._submit(name, text, budget, earlier)
                if refused is not None:
                    return Attempt(number=number, run=None, error=refused)
            if watched:
                seen = await self._over(name)
            assert seen is not None
            attempt = _attempt(number, seen, found)
            if attempt.error is None:
                if watched or attempt.cut_by != BUDGET:
                    return attempt
                found = attempt  # a later one may have taken it up
            else:
                deaths += watched
                if deaths == MAX_DEATHS or self._counts(seen["status"], watched, losses):
                    return found or attempt
            number += 1

    async def cancel_open(self) -> int:
        """End the runs under way; how many. A daemon that does not answer is left alone."""
        names = sorted(self._open)

        async def cancel(name: str) -> None:
            with suppress(FlashEdgeError, TimeoutError):
                async with asyncio.timeout(CANCEL_LIMIT_S):
                    await self._client.cancel(name)

        await asyncio.gather(*map(cancel, names))
        return len(names)

    # ------------------------------------------------------------ inner

    def _counts(self, status: str, watched: bool, losses: int) -> bool:
        """Whether a run without a result is the problem's end. A cancelled one is if somebody else
        cancelled it before our eyes, and not the daemon's stop."""
        if status == "failed":
            return watched or not self._retry_failed
        return status == "cancelled" and watched and losses == self._losses

    async def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._patiently(lambda: self._client.run(name))
        except NotFound:
            return None

    async def _submit(
        self, name: str, text: str, budget: int | None, earlier: Attempt | None
    ) -> dict[str, str] | None:
        """Start the run; the error if the daemon refuses this problem."""
        body = {**self._settings, "problem": text, "id": name}
        if budget is not None:
            body["token_budget"] = budget
        if earlier is not None:
            body["continues"] = earlier.run
        self._open.add(name)
        try:
            await self._patiently(lambda: self._client.submit(body))
        except RequestError as error:
            self._open.discard(name)
            if error.param == "continues" or (earlier is not None and isinstance(error, NotFound)):
                return await self._submit(name, text, budget, None)  # its log is gone: do it anew
            if isinstance(error, ContextOverflow) or error.param in ("problem", "messages"):
                return {"code": error.code, "message": str(error)}
            raise
        return None

    async def _over(self, name: str) -> dict[str, Any]:
        """The run's object once it is over."""
        self._open.add(name)
        wait_s = LEAST_WAIT_S
        while (seen := await self._patiently(lambda: self._client.run(name)))["status"] in OPEN:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, LONGEST_WAIT_S)
        self._open.discard(name)
        return seen

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """A full queue is waited for; a daemon that went away has some seconds to come back."""
        delays = iter(RETRY_DELAYS_S)
        while True:
            try:
                return await call()
            except QueueFull as error:
                await asyncio.sleep(max(error.retry_after_s, LEAST_WAIT_S))
            except (DaemonError, EngineDead) as error:
                self._losses += 1
                delay_s = next(delays, None)
                if delay_s is None:
                    hint = "what is finished is kept: flashedge up, then the same command goes on"
                    raise type(error)(str(error), hint=hint) from error
                await asyncio.sleep(delay_s)


def _attempt(number: int, seen: Mapping[str, Any], earlier: Attempt | None) -> Attempt:
    """Of a run's object."""
    if seen["status"] != "finished":
        told = seen.get("error") or {}
        code, message = told.get("code") or seen["status"], told.get("message") or seen["status"]
        return Attempt(number=number, run=seen["id"], error={"code": code, "message": message})
    attempt = Attempt(
        number=number,
        run=seen["id"],
        answer=seen.get("answer"),
        tokens=seen["usage"]["tree_tokens"],
        seconds=seen["timing"]["total_s"],
        certainty=seen.get("certainty"),
        cut_by=seen.get("cut_by"),
    )
    if earlier is not None and earlier.seconds is not None and attempt.seconds is not None:
        return replace(attempt, seconds=earlier.seconds + attempt.seconds)
    return attempt
