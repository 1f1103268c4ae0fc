"""The workers between client and dashboard. Each loops or makes one request, and posts messages.

They poll a daemon that does not answer at growing intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from textual.message import Message

from flashedge.client.follow import RetryPolicy, follow
from flashedge.client.run_fold import Numbered
from flashedge.errors import FlashEdgeError, RunInterrupted
from flashedge.tui.draft import Draft
from flashedge.tui.messages import (
    DaemonLost,
    DeviceSampled,
    EventsReceived,
    FollowEnded,
    Notice,
    OlderReceived,
    ReplayLoaded,
    RunAccepted,
    RunRefused,
    StatusReceived,
)
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.summary import parse_run, parse_status

POLL_S = 1.0
DEVICE_POLL_S = 2.0
LISTED_RUNS = 50
"""Newest runs that each poll lists."""

OLDER_RUNS = 200
"""Runs of a page behind them, which is loaded when the user wants it."""

RETRIES = RetryPolicy(first_s=0.5, longest_s=8.0)
"""The dashboard never gives up: a user may start the daemon at any time."""

Post = Callable[[Message], object]


ReadDevices = Callable[[Sequence[str]], tuple[DeviceSample, ...]]


class Daemon(Protocol):
    """The part of the async client that the dashboard uses."""

    @property
    def base_url(self) -> str: ...

    async def status(self) -> dict[str, Any]: ...
    async def runs(self, *, limit: int = ..., before: str | None = ...) -> list[dict[str, Any]]: ...
    async def run(self, run: str) -> dict[str, Any]: ...
    async def submit(self, body: Mapping[str, Any]) -> dict[str, Any]: ...
    async def cancel(self, run: str) -> dict[str, Any]: ...
    def events(self, run: str, after: int = ...) -> AsyncGenerator[tuple[Numbered, ...]]: ...


async def watch_daemon(daemon: Daemon, post: Post, poll_s: float = POLL_S) -> None:
    """Poll the daemon's status and its runs forever."""
    failures = 0
    while True:
        try:
            status, listing = await asyncio.gather(daemon.status(), daemon.runs(limit=LISTED_RUNS))
        except FlashEdgeError as error:
            failures += 1
            pause_s = RETRIES.pause_s(failures)
            post(DaemonLost(error.line, pause_s))
        else:
            failures, pause_s = 0, poll_s
            post(StatusReceived(parse_status(status), tuple(map(parse_run, listing))))
        await asyncio.sleep(pause_s)


async def load_older(daemon: Daemon, post: Post, before: str) -> None:
    """Fetch one page of the runs older than `before`; an empty one if that fails."""
    try:
        page = await daemon.runs(limit=OLDER_RUNS, before=before)
    except FlashEdgeError as error:
        page = []
        post(Notice(f"Can't list older runs: {error.line}", "warning"))
    post(OlderReceived(tuple(map(parse_run, page))))


async def follow_run(daemon: Daemon, post: Post, run: str, after: int = 0) -> None:
    """Post the run's events to its end, through lost connections."""
    try:
        async with aclosing(follow(daemon, run, RETRIES, after)) as pieces:
            async for items in pieces:
                post(EventsReceived(run, items))
    except RunInterrupted:
        post(FollowEnded(run, interrupted=True))
    except FlashEdgeError as error:  # the run was removed, or the key is wrong
        post(Notice(error.line, "warning"))
        post(FollowEnded(run, interrupted=True))
    else:
        post(FollowEnded(run))


async def load_replay(daemon: Daemon, post: Post, run: str) -> None:
    """Fetch all events of a run that is over."""
    items: list[Numbered] = []
    try:
        async with aclosing(daemon.events(run)) as pieces:
            async for piece in pieces:
                items.extend(piece)
    except RunInterrupted:
        pass  # the events that there are can be played
    except FlashEdgeError as error:
        post(Notice(f"Can't replay the run: {error.line}", "error"))
        return
    if items:
        post(ReplayLoaded(run, tuple(items)))
    else:
        post(Notice(f"Run {run} has no events to replay", "warning"))


async def submit_problem(daemon: Daemon, post: Post, draft: Draft) -> None:
    try:
        accepted = await daemon.submit(draft.build_body())
    except FlashEdgeError as error:
        post(RunRefused(draft, error.line))
        return
    known = accepted.get("position"), accepted.get("starts_in_s")
    post(RunAccepted(str(accepted["id"]), *known))


async def cancel_run(daemon: Daemon, post: Post, run: str) -> None:
    try:
        found = await daemon.cancel(run)
    except FlashEdgeError as error:
        post(Notice(f"Can't cancel the run: {error.line}", "error"))
        return
    post(Notice(f"Run {run} is {found.get('status')}"))


async def watch_devices(
    read: ReadDevices, list_cards: Callable[[], tuple[str, ...]], post: Post
) -> None:
    """Sample the listed cards, for ever. Reading may block, so it happens in a thread."""
    while True:
        post(DeviceSampled(await asyncio.to_thread(read, list_cards())))
        await asyncio.sleep(DEVICE_POLL_S)
