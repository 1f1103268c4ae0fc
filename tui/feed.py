"""The workers between client and dashboard: each loops or asks once, and posts messages.

A daemon that does not answer is asked again, at growing intervals; a follower takes its run up
again after the last event that it passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from textual.message import Message

from flashedge.errors import DaemonError, FlashEdgeError, RunInterrupted
from flashedge.tui.messages import (
    DaemonLost,
    DaemonSeen,
    DeviceSeen,
    EventsSeen,
    FollowEnded,
    ReplayLoaded,
    Submitted,
    Told,
)
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.run import Numbered
from flashedge.tui.state.summary import look_of, summary_of

POLL_S = 1.0
DEVICE_POLL_S = 2.0
LISTED_RUNS = 50
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 8.0

Post = Callable[[Message], object]


class Daemon(Protocol):
    """The part of the async client that the dashboard uses."""

    @property
    def base_url(self) -> str: ...

    async def status(self) -> dict[str, Any]: ...
    async def runs(self, *, limit: int = ...) -> list[dict[str, Any]]: ...
    async def run(self, run: str) -> dict[str, Any]: ...
    async def submit(self, body: Mapping[str, Any]) -> dict[str, Any]: ...
    async def cancel(self, run: str) -> dict[str, Any]: ...
    def events(self, run: str, after: int = ...) -> AsyncGenerator[tuple[Numbered, ...]]: ...


def backoff_s(failures: int) -> float:
    """The pause after so many failures in a row: 0.5, 1, 2, 4, 8, 8 … seconds."""
    return min(FIRST_RETRY_S * 2.0 ** max(failures - 1, 0), LONGEST_RETRY_S)


async def watch_daemon(daemon: Daemon, post: Post, poll_s: float = POLL_S) -> None:
    """Look at the daemon and its runs, over and over."""
    failures = 0
    while True:
        try:
            look, listing = await asyncio.gather(daemon.status(), daemon.runs(limit=LISTED_RUNS))
            waiting = [r["id"] for r in listing if r["status"] == "queued"]
            places = {run: (await daemon.run(run)).get("position") for run in waiting}
        except FlashEdgeError as error:
            failures += 1
            pause_s = backoff_s(failures)
            post(DaemonLost(error.line, pause_s))
        else:
            failures, pause_s = 0, poll_s
            runs = tuple(summary_of(r, places.get(r["id"])) for r in listing)
            post(DaemonSeen(look_of(look), runs))
        await asyncio.sleep(pause_s)


async def follow_run(daemon: Daemon, post: Post, run: str, after: int = 0) -> None:
    """Pass the run's events on to its end, whatever becomes of the connection."""
    failures = 0
    while True:
        try:
            async with aclosing(daemon.events(run, after)) as pieces:
                async for items in pieces:
                    failures = 0
                    after = items[-1][0]
                    post(EventsSeen(run, items))
            post(FollowEnded(run))
            return
        except RunInterrupted:
            post(FollowEnded(run, interrupted=True))
            return
        except DaemonError:
            failures += 1
            await asyncio.sleep(backoff_s(failures))
        except FlashEdgeError as error:  # no such run any more, or no access
            post(Told(error.line, "warning"))
            post(FollowEnded(run, interrupted=True))
            return


async def load_replay(daemon: Daemon, post: Post, run: str) -> None:
    """Fetch all events of a run that is over."""
    items: list[Numbered] = []
    try:
        async with aclosing(daemon.events(run)) as pieces:
            async for piece in pieces:
                items.extend(piece)
    except RunInterrupted:
        pass  # what there is can be played
    except FlashEdgeError as error:
        post(Told(f"no replay: {error.line}", "error"))
        return
    if items:
        post(ReplayLoaded(run, tuple(items)))
    else:
        post(Told(f"run {run} has no events to play", "warning"))


async def submit_problem(daemon: Daemon, post: Post, body: Mapping[str, Any]) -> None:
    try:
        taken = await daemon.submit(body)
    except FlashEdgeError as error:
        post(Told(f"not taken: {error.line}", "error"))
        return
    post(Submitted(str(taken["id"]), taken.get("position")))


async def cancel_run(daemon: Daemon, post: Post, run: str) -> None:
    try:
        now = await daemon.cancel(run)
    except FlashEdgeError as error:
        post(Told(f"not cancelled: {error.line}", "error"))
        return
    post(Told(f"run {run} is {now.get('status')}"))


async def watch_device(read: Callable[[], DeviceSample], post: Post) -> None:
    """Sample the machine; reading may block, so it happens in a thread."""
    while True:
        post(DeviceSeen(await asyncio.to_thread(read)))
        await asyncio.sleep(DEVICE_POLL_S)
