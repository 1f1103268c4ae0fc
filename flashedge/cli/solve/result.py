"""A run for people: its answer on stdout, and on stderr the tree that grows, figures, warnings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flashedge.cli import output
from flashedge.client import words
from flashedge.errors import FlashEdgeError, RequestError

if TYPE_CHECKING:
    from flashedge.client.run_view import RunView

MAX_VOTES = 6  # answers in the line of the votes
FRAMES_PER_S = 10.0  # of the growing tree; a reader sees no more


def print_result(result: Mapping[str, Any], *, quiet: bool) -> None:
    """Print the answer or nothing on stdout, and the chosen path and the figures on stderr."""
    if not quiet:
        text = str(result.get("text", "")).strip()
        if text and text != result.get("answer"):
            output.stderr().print(f"\n{text}\n")
        print_figures(result)
    warn_about(result)
    if answer := result.get("answer"):
        output.print_answer(answer)


def warn_about(result: Mapping[str, Any]) -> None:
    """Say on stderr why there is no answer, that the answer is probably wrong, or that a baseline
    run can't be compared with a usual one."""
    if result.get("answer") is None:
        warnings = [" ".join(filter(None, words.explain_no_answer(result)))]
    else:
        scores = {path.get("node"): path.get("score") for path in result.get("completions") or []}
        warnings = words.list_doubts(result, scores.get(result.get("choice")))
    for warning in warnings:
        output.warn(warning)
    if result.get("baseline") and result.get("deterministic") is False:
        output.warn(
            "The kernels of this device are not batch-invariant, so the same search without"
            " baseline=true can build another tree: compare many problems, not this one. On a card,"
            " the setting batch_invariant makes both alike."
        )


def print_figures(result: Mapping[str, Any]) -> None:
    """Print on stderr the votes, what the run took, and what cut it short."""
    votes = result.get("votes") or []
    if len(votes) > 1 and not any("\n" in str(vote["answer"]) for vote in votes):
        is_weighted = any(vote["weight"] for vote in votes)
        shown = ", ".join(
            f"{v['answer']} ({v['count']}" + (f", {v['weight']:.2f})" if is_weighted else ")")
            for v in votes[:MAX_VOTES]
        )
        output.note(f"votes ({'paths, weight' if is_weighted else 'paths'}): {shown}")
    usage, timing = result.get("usage") or {}, result.get("timing") or {}
    output.note(
        f"run {result.get('id')}: {usage.get('tree_tokens', 0):,} tokens in"
        f" {timing.get('total_s', 0.0):.2f} s"
    )
    if cut := words.count_cut(result):
        of = words.format_count(len(result["completions"]), "path")
        output.note(f"{cut} of {of} reached a token limit before an answer")
    reasons = [path["finish_reason"] for path in result.get("completions") or []]
    if unsure := reasons.count("unsure"):
        output.note(f"{unsure} of {len(reasons)} paths ended where the model was unsure")
    if fingerprint := result.get("fingerprint"):
        output.note(describe_fingerprint(fingerprint))
    if result.get("cut_by"):
        output.note(f"stopped early: {result['cut_by']}")
    if result.get("early_exit_note"):
        output.note(result["early_exit_note"])


def describe_fingerprint(found: Mapping[str, Any]) -> str:
    """What the bits of a deterministic run depend on."""
    roles = [role for role in ("generator", "verifier") if role in found]
    named = " and ".join(f"{found[r].get('digest')} ({found[r].get('dtype')})" for r in roles)
    passes = (found.get(f"{role}_passes") or {} for role in roles)
    shapes = " and ".join(f"{p.get('window')} x {p.get('group')}" for p in passes)
    return (
        f"deterministic: models {named}; passes of {shapes} tokens; {found.get('vllm')},"
        f" torch {found.get('torch')}; {found.get('device')};"
        f" {words.format_count(found.get('threads') or 1, 'thread')} an engine"
    )


def follow_run(
    client: Any, body: dict[str, Any], *, show: bool, off_terminal: bool = True, whole: bool = False
) -> dict[str, Any]:
    """Start a run, draw its tree on stderr and return the run's object.

    body: of POST /v1/solve. show, off_terminal, whole: as for `draw_tree`. An interrupt cancels the
    run. Raises the run's error, or RequestError when it is cancelled.
    """
    from flashedge import events
    from flashedge.client import sync_client as remote
    from flashedge.client.protocol import build_run_error
    from flashedge.client.run_view import RunView, enqueue, fold

    view = RunView()
    try:
        with draw_tree(show, off_terminal, whole) as draw:
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
def draw_tree(
    show: bool, off_terminal: bool, whole: bool
) -> Iterator[Callable[[RunView, bool], None]]:
    """Draw a run on stderr if `show`. Yields `draw(view, is_last)`.

    On a terminal the tree grows in place. When the run is over, its status line is left, and below
    it the tree if `whole`. Elsewhere these are printed at the end, if `off_terminal`, and before
    them a line for a run that waits.
    """
    from flashedge.cli.solve.live_tree import render

    console = output.stderr()
    if not show or (not off_terminal and not console.is_terminal):
        yield lambda view, is_last: None
    elif not console.is_terminal:
        is_noted = False

        def print_once(view: RunView, is_last: bool) -> None:
            nonlocal is_noted
            if view.position is not None and not is_noted:
                is_noted = True
                wait = words.describe_wait(view.position, view.starts_in_s)
                output.note(f"run {view.id} waits: {wait}")
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
                    drawn = render(
                        view,
                        width=console.width,
                        height=None if is_last else console.height - 1,
                        with_tree=whole or not is_last,
                        elapsed_s=None if started_at is None else now - started_at,
                    )
                    shown.update(drawn, refresh=True)

            yield draw
