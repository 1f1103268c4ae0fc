"""What each of a scheduler's requests needs next.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.determinism.replay import Replay
from flashedge.engine.vllm.inside.determinism.windows import Windows
from flashedge.scheduling.determinism.step_choice import MAX_WAIT


@dataclass(slots=True, kw_only=True)
class Due:
    """The requests of a scheduler between two steps, by what they need next."""

    prefill: tuple[Replay, int] | None = None
    """The first that has prompt to compute, and how many tokens have KV already."""
    scoring: list[Replay] = field(default_factory=list)
    """Those of a verifier, which have paths to compute and draw nothing."""
    ready: list[Replay] = field(default_factory=list)
    """Those whose window can be verified."""
    is_joined: bool = False
    """Whether the window of another one may be full within `MAX_WAIT` shared steps."""
    shared: list[Request] = field(default_factory=list)
    """Those that shared steps may run."""
    others: bool = False
    """Whether some of these are not deterministic."""

    def count_windows(self) -> int:
        """Windows that passes may compute side by side."""
        return len(self.ready) + len(self.scoring)


def find_due(scheduler: Any, windows: Windows, *, admits: bool) -> Due:
    """Sort a scheduler's requests. Of waiting deterministic ones no more are looked at than have a
    place.

    admits: whether a pass may give blocks to a request that has none.
    """
    due = Due()
    for request in scheduler.running:
        _sort(windows, due, request)
    places = scheduler.max_num_active_reqs - len(scheduler.running)
    for request in scheduler.kv_holding_waiting:
        _sort(windows, due, request)
        places -= 1
    for request in scheduler.waiting:
        if request.request_id not in windows.replays:
            _sort(windows, due, request)
        elif places > 0 and admits and due.count_windows() < windows.shape.group:
            _sort(windows, due, request)
            places -= 1
    return due


def _sort(windows: Windows, due: Due, request: Request) -> None:
    replay = windows.replays.get(request.request_id)
    if replay is None:
        due.shared.append(request)
        due.others = True
    elif request.pooling_params is not None:
        due.scoring.append(replay)
    elif is_ready(windows, replay):
        due.ready.append(replay)
    elif replay.is_current:
        due.shared.append(request)
        missing = windows.end_window(replay) - request.num_tokens
        due.is_joined = due.is_joined or missing <= MAX_WAIT
    else:
        has_blocks = request.status is RequestStatus.RUNNING
        computed = (
            request.num_computed_tokens if has_blocks else windows.count_shared_tokens(request)
        )
        if computed == windows.find_window(replay):
            due.ready.append(replay)
        elif due.prefill is None:
            due.prefill = replay, computed


def is_ready(windows: Windows, replay: Replay) -> bool:
    """Whether nothing is left to draw for the window of a request that has its KV."""
    if not replay.is_current:
        return False
    return replay.may_end or replay.request.num_tokens >= windows.end_window(replay)
