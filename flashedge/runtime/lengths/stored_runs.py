"""Reads the lengths of stored runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import assert_never

from flashedge.errors import NotFound, RequestError
from flashedge.runtime.lengths.base import EncodePrompt, describe_search, encode_nothing
from flashedge.runtime.lengths.path_counter import PathCounter
from flashedge.runtime.records.outline import CompletedStep, Level, RunOutline
from flashedge.runtime.records.store import UNFINISHED, RunStore, StoredRun
from flashedge.runtime.request.request import Request
from flashedge.scheduling.lengths.observed import OutputLengths
from flashedge.scheduling.lengths.request import FinishedOutputs

PAGE = 200


def read_newest(
    store: RunStore,
    *,
    limit: int,
    pair: str | None = None,
    since_s: float = 0.0,
    is_late: Callable[[], bool] = lambda: False,
    encode: EncodePrompt = encode_nothing,
) -> list[FinishedOutputs]:
    """Read the newest `limit` runs that are over and have a path, oldest first.

    pair: only runs of this pair. since_s: only runs that were submitted since then (unix seconds).
    is_late: asked before each run; reading ends once it says yes. encode: makes the prompts' tokens
    of runs that have none. Raises StoreError.
    """
    found: list[FinishedOutputs] = []
    for stored in _iter_newest(store, since_s):
        if len(found) == limit or is_late():
            break
        if pair in (None, stored.spec.get("pair")):
            finished = read_run(store, stored, encode)
            if finished is not None:
                found.append(finished)
    return found[::-1]


def read_run(
    store: RunStore, stored: StoredRun, encode: EncodePrompt = encode_nothing
) -> FinishedOutputs | None:
    """Read one run. None without a path, and for the request of another version. Raises
    StoreError."""
    try:
        spec = Request.from_json(stored.spec)
    except (KeyError, TypeError, ValueError, RequestError):
        return None
    outline = store.outline(stored.id)
    lengths = count_outline(outline)
    if lengths is None:
        return None
    request = describe_search(spec, spec.prompt_ids or encode(spec.problem.messages))
    request = replace(request, prompt_tokens=outline.prompt_tokens)
    return FinishedOutputs(request=request, lengths=lengths)


def count_outline(outline: RunOutline) -> OutputLengths | None:
    """Count the paths of a stored run. None where no path is known."""
    counter = PathCounter(sees_progress=False)
    for part in outline.parts:
        match part:
            case Level(parent=parent, children=children):
                counter.expand(parent, children)
            case CompletedStep(node=node, tokens=tokens, finish=finish):
                counter.complete(node, tokens, finish)
            case _:
                assert_never(part)
    return counter.count()


def _iter_newest(store: RunStore, since_s: float) -> Iterator[StoredRun]:
    """Yield the runs that are over, newest first. Ends early where a page's last run is removed."""
    before = None
    while True:
        try:
            page = store.list(limit=PAGE, before=before)
        except NotFound:
            return
        for stored in page:
            if stored.created_at < since_s:
                return
            if stored.status not in UNFINISHED:
                yield stored
        if len(page) < PAGE:
            return
        before = page[-1].id
