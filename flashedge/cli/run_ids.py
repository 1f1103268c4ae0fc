"""Run ids as users type them: any prefix that only one run has, with or without `run-`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flashedge.errors import NotFound, RequestError

OVER = ("finished", "failed", "cancelled", "interrupted")
"""The statuses of a run that will not change any more."""

_START = "run-"
_MIN_LENGTH = len(_START) + 4
_PAGE = 1000


def find_run(client: Any, given: str) -> str:
    """The id of the one run that `given` begins. Raises NotFound, or RequestError for several."""
    found = []
    for run in find_runs(client):
        if run["id"] == given:
            return given
        if run["id"].startswith((given, _START + given)):
            found.append(str(run["id"]))
    if not found:
        raise NotFound(f"there is no run {given!r}", hint="list them: flashedge runs ls")
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
        raise RequestError(
            f"{len(found)} runs begin with {given!r}: {some}", hint="type more of the id"
        )
    return found[0]


def find_runs(client: Any, statuses: Sequence[str | None] = (None,)) -> Iterator[dict[str, Any]]:
    """The summaries of all runs of these statuses (None: any), page by page."""
    for status in statuses:
        before: str | None = None
        while True:
            page = client.runs(limit=_PAGE, before=before, status=status)
            yield from page["data"]
            if not page.get("has_more") or not page["data"]:
                break
            before = page["data"][-1]["id"]


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """The shortest prefixes, all of one length, that tell `ids` apart."""
    longest = max(map(len, ids), default=0)
    for length in range(_MIN_LENGTH, longest):
        short = [run[:length] for run in ids]
        if len(set(short)) == len(set(ids)):
            return short
    return list(ids)
