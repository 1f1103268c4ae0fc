"""The workers between client and dashboard, and the messages that they post. They own no state.

A worker whose daemon does not answer polls it at growing intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from textual.message import Message

from flashedge.client.async_client import AsyncClient
from flashedge.client.follow import RetryPolicy, follow
from flashedge.client.run_fold import Numbered
from flashedge.errors import FlashEdgeError, RunInterrupted
from flashedge.literal import show_in_line
from flashedge.tui.device import DeviceSample
from flashedge.tui.state import Dashboard, lose_daemon, start_replay
from flashedge.tui.summary import DaemonStatus, RunRow, parse_run, parse_status
from flashedge.tui.widgets.dialogs import Draft

POLL_S = 1.0
DEVICE_POLL_S = 2.0
LISTED_RUNS = 50

OLDER_RUNS = 200
"""Runs of a page that is older than the listed ones, and loaded when the user wants it."""

RETRIES = RetryPolicy(first_s=0.5, longest_s=8.0)
"""The dashboard never gives up: a user may start the daemon at any time."""

Post = Callable[[Message], object]
ReadDevices = Callable[[Sequence[str]], tuple[DeviceSample, ...]]


Severity = Literal["information", "warning", "error"]


@dataclass
class Changed(Message):
    """A pure change of the dashboard's state."""

    change: Callable[[Dashboard], Dashboard]


@dataclass
class EventsReceived(Message):
    run: str
    items: tuple[Numbered, ...]


@dataclass
class FollowEnded(Message):
    """A run is no longer followed. interrupted: its log has no last event."""

    run: str
    interrupted: bool = False


@dataclass
class StatusReceived(Message):
    daemon: DaemonStatus
    runs: tuple[RunRow, ...]


@dataclass
class OlderReceived(Message):
    """A page of the runs behind the oldest listed one."""

    runs: tuple[RunRow, ...]


@dataclass
class RunAccepted(Message):
    """The daemon accepted a submitted problem; `position` runs wait before it."""

    run: str
    position: int | None
    starts_in_s: float | None


@dataclass
class RunRefused(Message):
    draft: Draft
    error: str


@dataclass
class Notice(Message):
    text: str
    severity: Severity = "information"


async def watch_daemon(daemon: AsyncClient, post: Post, poll_s: float = POLL_S) -> None:
    """Poll the daemon's status and its runs forever; its strategies once for each connection."""
    failures, is_new = 0, True
    while True:
        try:
            status, listing = await asyncio.gather(daemon.status(), daemon.runs(limit=LISTED_RUNS))
            if is_new:
                names = list_strategies(await daemon.models())
                post(Changed(partial(replace, strategies=names)))
                is_new = False
        except FlashEdgeError as error:
            failures, is_new = failures + 1, True
            pause_s = RETRIES.pause_s(failures)
            post(Changed(partial(lose_daemon, error=error.line, retry_in_s=pause_s)))
        else:
            failures, pause_s = 0, poll_s
            post(StatusReceived(parse_status(status), tuple(map(parse_run, listing["data"]))))
        await asyncio.sleep(pause_s)


def list_strategies(models: Mapping[str, Any]) -> tuple[str, ...]:
    """The strategies among the models' names, `pair:strategy`, of the first pair."""
    pair, *names = [str(model["id"]) for model in models["data"]] or [""]
    own = f"{pair}:"
    return tuple(show_in_line(n.removeprefix(own)) for n in names if n.startswith(own))


async def load_older(daemon: AsyncClient, post: Post, before: str) -> None:
    """Fetch one page of the runs older than `before`; an empty one if that fails."""
    try:
        page = (await daemon.runs(limit=OLDER_RUNS, before=before))["data"]
    except FlashEdgeError as error:
        page = []
        post(Notice(f"Can't list older runs: {error.line}", "warning"))
    post(OlderReceived(tuple(map(parse_run, page))))


async def follow_run(daemon: AsyncClient, post: Post, run: str, after: int = 0) -> None:
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


async def load_replay(daemon: AsyncClient, post: Post, run: str) -> None:
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
        post(Changed(partial(start_replay, run=run, items=items)))
    else:
        post(Notice(f"Run {run} has no events to replay", "warning"))


async def submit_problem(daemon: AsyncClient, post: Post, draft: Draft) -> None:
    try:
        accepted = await daemon.submit(draft.build_body())
    except FlashEdgeError as error:
        post(RunRefused(draft, error.line))
        return
    known = accepted.get("position"), accepted.get("starts_in_s")
    post(RunAccepted(str(accepted["id"]), *known))


async def cancel_run(daemon: AsyncClient, post: Post, run: str) -> None:
    try:
        found = await daemon.cancel(run)
    except FlashEdgeError as error:
        post(Notice(f"Can't cancel the run: {error.line}", "error"))
        return
    post(Notice(f"Run {run} is {found.get('status')}"))


async def watch_devices(
    read: ReadDevices, list_cards: Callable[[], tuple[str, ...]], post: Post
) -> None:
    """Sample the listed cards forever. Reading may block, so it happens in a thread."""
    while True:
        devices = await asyncio.to_thread(read, list_cards())
        post(Changed(partial(replace, devices=devices)))
        await asyncio.sleep(DEVICE_POLL_S)
