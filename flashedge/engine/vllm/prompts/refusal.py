"""Refuses requests whose texts hold a control token, where a text could act as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flashedge.engine.vllm.prompts.spelling import PrivateSpelling
from flashedge.engine.vllm.prompts.templates import ROLES
from flashedge.errors import RequestError


def refuse_tokens(spelling: PrivateSpelling, request: Mapping[str, Any]) -> None:
    """Raises RequestError for the first text of a request that holds a control token.

    Texts of one list are also read as one, since a template may write them without anything
    between.
    """
    for where, text in list_texts(request):
        if (token := spelling.find(text)) is not None:
            raise RequestError(
                f"{where} holds {token!r}, which this model's chat template can't tell from"
                " its own token",
                hint="write it in another way, such as with a space inside",
                param=where.partition("[")[0],
            )
    for at, message in enumerate(request.get("messages") or ()):
        role = message.get("role") if isinstance(message, Mapping) else None
        if isinstance(role, str) and role not in ROLES:
            raise RequestError(
                f"messages[{at}] has the unknown role {role!r}",
                hint=f"use one of {', '.join(ROLES)}",
                param="messages",
            )


def list_texts(node: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Each text below a JSON value with its place, names of fields among them, then the texts of
    each list as one."""
    if hasattr(node, "model_dump"):
        node = node.model_dump()
    if isinstance(node, str):
        yield where, node
    elif isinstance(node, Mapping):
        for name, part in node.items():
            place = f"{where}.{name}" if where else str(name)
            yield place, str(name)
            yield from list_texts(part, place)
    elif isinstance(node, list | tuple):
        for at, part in enumerate(node):
            yield from list_texts(part, f"{where}[{at}]")
        if len(node) > 1 and where != "messages":
            texts = [p.get("text") for p in node if isinstance(p, Mapping)]
            yield where, "".join(t for t in texts if isinstance(t, str))
