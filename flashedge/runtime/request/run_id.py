"""Names of runs: the service's own, or those that clients choose so that they can ask twice."""

from __future__ import annotations

import re
import secrets

from flashedge.errors import RequestError

_CHOSEN = re.compile(r"run-[a-z0-9][a-z0-9-]{10,58}[a-z0-9]")


def new_run_id() -> str:
    return f"run-{secrets.token_hex(6)}"


def check_run_id(run_id: str) -> None:
    """Raises RequestError for a name that a client may not choose."""
    if not _CHOSEN.fullmatch(run_id):
        raise RequestError(
            f"id is {run_id[:80]!r}; it must be run- and 12 to 60 of a-z, 0-9 and -", param="id"
        )
