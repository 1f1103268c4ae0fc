"""What workers post to the dashboard. They own no state."""

from __future__ import annotations

from typing import Literal

from textual.message import Message

from flashedge.client.run_fold import Numbered
from flashedge.tui.draft import Draft
from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.summary import DaemonStatus, RunRow

Severity = Literal["information", "warning", "error"]


class EventsReceived(Message):
    """Events of a followed run, in order."""

    def __init__(self, run: str, items: tuple[Numbered, ...]) -> None:
        self.run = run
        self.items = items
        super().__init__()


class FollowEnded(Message):
    """A run is no longer followed. interrupted: its log has no last event."""

    def __init__(self, run: str, interrupted: bool = False) -> None:
        self.run = run
        self.interrupted = interrupted
        super().__init__()


class StatusReceived(Message):
    """The daemon's status and its newest runs."""

    def __init__(self, daemon: DaemonStatus, runs: tuple[RunRow, ...]) -> None:
        self.daemon = daemon
        self.runs = runs
        super().__init__()


class OlderReceived(Message):
    """A page of the runs behind the oldest listed one."""

    def __init__(self, runs: tuple[RunRow, ...]) -> None:
        self.runs = runs
        super().__init__()


class DaemonLost(Message):
    """The daemon doesn't answer. It is polled again in `retry_in_s`."""

    def __init__(self, error: str, retry_in_s: float) -> None:
        self.error = error
        self.retry_in_s = retry_in_s
        super().__init__()


class DeviceSampled(Message):
    def __init__(self, samples: tuple[DeviceSample, ...]) -> None:
        self.samples = samples
        super().__init__()


class ReplayLoaded(Message):
    def __init__(self, run: str, items: tuple[Numbered, ...]) -> None:
        self.run = run
        self.items = items
        super().__init__()


class RunAccepted(Message):
    """The daemon accepted a submitted problem; `position` runs wait before it, and it is expected
    to start in `starts_in_s`."""

    def __init__(self, run: str, position: int | None, starts_in_s: float | None) -> None:
        self.run = run
        self.position = position
        self.starts_in_s = starts_in_s
        super().__init__()


class RunRefused(Message):
    """The daemon refused a submitted problem."""

    def __init__(self, draft: Draft, error: str) -> None:
        self.draft = draft
        self.error = error
        super().__init__()


class KeyHandled(Message):
    """The key that was sent with this number has been handled wherever it could be."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__()


class Notice(Message):
    """A line for the user."""

    def __init__(self, text: str, severity: Severity = "information") -> None:
        self.text = text
        self.severity = severity
        super().__init__()
