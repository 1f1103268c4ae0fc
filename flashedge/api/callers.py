"""Who asks for a search by the daemon's own routes.

The client's name is X-FlashEdge-Client, else its address. X-FlashEdge-Program names the program
that the search is a part of.
"""

from __future__ import annotations

from starlette.requests import Request

from flashedge.scheduling.programs.program import Caller

MAX_PRIORITY = 1 << 31
LONGEST_NAME = 200


def read_caller(request: Request, priority: int) -> Caller:
    address = request.client.host if request.client else "unknown"
    client = shorten(request.headers.get("x-flashedge-client") or address)
    return Caller(
        client=client,
        program=name_program(client, request.headers.get("x-flashedge-program")),
        priority=limit_priority(priority),
    )


def name_program(client: str, name: str | None) -> str | None:
    """The key of a program. Clients that choose the same name have different programs."""
    return f"{shorten(name)} of {client}" if name else None


def shorten(name: str) -> str:
    """Names are kept for as long as their programs, so they are bounded."""
    return name[:LONGEST_NAME]


def limit_priority(priority: int) -> int:
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))
