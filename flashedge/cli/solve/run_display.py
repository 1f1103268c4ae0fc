"""Follow a run on the daemon while its tree grows on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flashedge.cli import output
from flashedge.client.words import describe_wait
from flashedge.errors import FlashEdgeError, RequestError

if TYPE_CHECKING:
    from flashedge.client.run_view import RunView

FRAMES_PER_S = 10.0


def follow_run(
    client: Any, body: dict[str, Any], *, show: bool, live: bool = True, whole: bool = False
) -> dict[str, Any]:
    """Start a run, draw its tree on stderr and return the run's object. See `draw_tree`.

    An interrupt cancels the run. Raises the run's error, or RequestError when it is cancelled.
    """
    from flashedge import events
    from flashedge.client import sync_client as remote
    from flashedge.client.protocol import build_run_error
    from flashedge.client.run_fold import enqueue, fold
    from flashedge.client.run_view import RunView

    view = RunView()
    try:
        with draw_tree(show, live, whole) as draw:
            for number, event in client.solve(body):
                if isinstance(event, remote.Queued):
                    view = enqueue(view, event.id, event.position, event.starts_in_s)
                else:
                    view = fold(view, [(number, event)])
                draw(view, isinstance(event, events.TERMINAL))
                match event:
                    case events.RunFinished():
                        return dict(event.result)
                    case events.RunFailed():
                        raise build_run_error(event)
                    case events.RunCancelled():
                        raise RequestError(f"run {view.id} was cancelled: {event.reason}")
    except KeyboardInterrupt:
        if view.id:
            with contextlib.suppress(FlashEdgeError):
                client.cancel(view.id)
            output.note(f"cancelled run {view.id}")
        else:
            output.note("interrupted: the daemon cancels a run whose client has gone")
        raise
    raise FlashEdgeError(f"run {view.id} ended without a result")


@contextmanager
def draw_tree(show: bool, live: bool, whole: bool) -> Iterator[Callable[[RunView, bool], None]]:
    """A context whose value is `draw(view, is_last)`.

    On a terminal the tree grows in place. When the run is over, its first line is left, and below
    it the whole tree if that is wanted. Elsewhere this is printed once, and before it one line if
    the run has to wait.
    """
    from flashedge.cli.solve.live_tree import render

    console = output.stderr()
    if not show or (not live and not console.is_terminal):
        yield lambda view, is_last: None
    elif not console.is_terminal:
        is_noted = False

        def print_once(view: RunView, is_last: bool) -> None:
            nonlocal is_noted
            if view.position is not None and not is_noted:
                is_noted = True
                output.note(
                    f"run {view.id} waits: {describe_wait(view.position, view.starts_in_s)}"
                )
            if is_last:
                console.print(render(view, width=console.width, with_tree=whole))

        yield print_once
    else:
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=False) as shown:
            drawn_at = 0.0
            started_at: float | None = None

            def draw(view: RunView, is_last: bool) -> None:
                nonlocal drawn_at, started_at
                now = time.monotonic()
                if started_at is None and view.state == "running":
                    started_at = now
                if is_last or now - drawn_at >= 1 / FRAMES_PER_S:
                    drawn_at = now
                    height = None if is_last else console.height - 1
                    elapsed_s = None if started_at is None else now - started_at
                    drawn = render(
                        view,
                        width=console.width,
                        height=height,
                        with_tree=whole or not is_last,
                        elapsed_s=elapsed_s,
                    )
                    shown.update(drawn, refresh=True)

            yield draw
