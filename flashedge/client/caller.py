"""What a client's requests have in common: headers that say who calls, and bodies in Unicode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashedge.errors import RequestError
from flashedge.literal import join_surrogates

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


def make_sendable(value: Any) -> Any:
    """The JSON value with `�` for half surrogates: a model's text may be cut within a character,
    and Python reads bytes of a command line that are not UTF-8 as halves."""
    match value:
        case str():
            return join_surrogates(value)
        case Mapping():
            return {make_sendable(key): make_sendable(item) for key, item in value.items()}
        case Sequence():
            return [make_sendable(item) for item in value]
    return value


def _check_name(name: str, param: str) -> str:
    is_printable = name.isascii() and name.isprintable() and name.strip() == name
    if not (name and is_printable and len(name) <= LONGEST_NAME):
        raise RequestError(
            f"the {param} is named {name[:40]!r}",
            hint=f"use 1 to {LONGEST_NAME} letters, digits and signs, without accents",
            param=param,
        )
    return name
