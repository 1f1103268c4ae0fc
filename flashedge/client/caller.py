"""Who calls the daemon: the headers of a client's requests."""

from __future__ import annotations

from flashedge.errors import RequestError

LONGEST_NAME = 200


def build_headers(*, api_key: str | None, name: str | None, program: str | None) -> dict[str, str]:
    """The headers of every request of a client.

    name: the client's; clients take turns. program: what its requests are a part of.
    Raises RequestError for a name that a header can't hold.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if name is not None:
        headers["X-FlashEdge-Client"] = _check_name(name, "client")
    if program is not None:
        headers["X-FlashEdge-Program"] = _check_name(program, "program")
    return headers


def _check_name(name: str, param: str) -> str:
    is_printable = name.isascii() and name.isprintable() and name.strip() == name
    if not (name and is_printable and len(name) <= LONGEST_NAME):
        raise RequestError(
            f"the {param} is named {name[:40]!r}",
            hint=f"use 1 to {LONGEST_NAME} letters, digits and signs, without accents",
            param=param,
        )
    return name
