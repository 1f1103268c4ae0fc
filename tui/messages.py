"""What workers tell the dashboard. They post these and own nothing."""

from __future__ import annotations

from typing import Literal

from textual.message import Message

from flashedge.tui.state.device import DeviceSample
from flashedge.tui.state.run import Numbered
from flashedge.tui.state.summary import DaemonLook, RunSummary

Severity = Literal["information", "warning", "error"]


class EventsSeen(Message):
    """Events of a followed run, in order."""

    def __init__(self, run: str, items: tuple[Numbered, ...]) -> None:
        self.run = run
        self.items = items
        super().__init__()


class FollowEnded(Message):
    """A run is followed no more. interrupted: its log has no last event."""

    def __init__(self, run: str, interrupted: bool = False) -> None:
        self.run = run
        self.interrupted = interrupted
        super().__init__()


class DaemonSeen(Message):
    def __init__(self, look: DaemonLook, runs: tuple[RunSummary, ...]) -> None:
        self.look = look
        self.runs = runs
        super().__init__()


class DaemonLost(Message):
    """The daemon does not answer; it is asked again in `retry_in_s`."""

    def __init__(self, error: str, retry_in_s: float) -> None:
        self.error = error
        self.retry_in_s = retry_in_s
        super().__init__()


class DeviceSeen(Message):
    def __init__(self, sample: DeviceSample) -> None:
        self.sample = sample
        super().__init__()


class ReplayLoaded(Message):
    def __init__(self, run: str, items: tuple[Numbered, ...]) -> None:
        self.run = run
        self.items = items
        super().__init__()


class Submitted(Message):
    def __init__(self, run: str, position: int | None) -> None:
        self.run = run
        self.position = position
        super().__init__()


class Told(Message):
    """A line for the user."""

    def __init__(self, text: str, severity: Severity = "information") -> None:
        self.text = text
        self.severity = severity
        super().__init__()
