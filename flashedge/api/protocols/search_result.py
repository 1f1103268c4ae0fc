"""Adds to a protocol's answer what only a search has: the run's id and the `flashedge` object.

The header X-FlashEdge-Run names the run. The object stands in the whole answer, or in the first
event of a stream that ends a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Message, Send

from flashedge.api.asgi import begins_stream, drop_length
from flashedge.api.failures import dump_json
from flashedge.api.protocols.paths import CHAT, MESSAGES, RESPONSES
from flashedge.api.protocols.search import ProtocolSearch

RUN_HEADER = b"x-flashedge-run"
_LAST_EVENTS = {
    CHAT: b'"finish_reason":"',
    RESPONSES: b'"type":"response.completed"',
    MESSAGES: b'"type":"message_delta"',
}
"""What an event that ends a choice contains. A text can't: its quotation marks are escaped."""


def add_result(search: ProtocolSearch, path: str, send: Send) -> Send:
    """Wrap `send` for the answer of a search. Errors and counts of tokens stay as they are."""
    is_stream, is_added = False, False

    async def adding(message: Message) -> None:
        nonlocal is_stream, is_added
        if message["type"] == "http.response.start":
            if path not in _LAST_EVENTS or message["status"] != 200:
                is_added = True
            else:
                is_stream = begins_stream(message)
                message = drop_length(message)
                message["headers"].append((RUN_HEADER, search.run_id.encode()))
        elif not is_added and search.result is not None and (body := message.get("body")):
            mark = b"{" if not is_stream else _LAST_EVENTS[path]
            if mark in body:
                is_added = True
                message = {**message, "body": _insert(body, mark, search.result, is_stream)}
        await send(message)

    return adding


def _insert(body: bytes, mark: bytes, result: Mapping[str, Any], is_stream: bool) -> bytes:
    """Put the object first in the JSON object of the whole body, or of the event with the mark."""
    start = 0
    if is_stream:  # JSON has no line breaks, so only a line of the stream begins so
        start = (b"\n" + body).rindex(b"\ndata: {", 0, body.index(mark) + 1)
    at = body.index(b"{", start) + 1
    return body[:at] + b'"flashedge":' + dump_json(build_extra(result)) + b"," + body[at:]


def build_extra(result: Mapping[str, Any]) -> dict[str, Any]:
    """The `flashedge` object of a search's answer. /v1/runs/{run_id} has the rest."""
    names = (
        *("strategy", "n", "seed", "answer", "votes", "certainty"),
        *("trusted", "cut_by", "unlikely", "unboxed"),
    )
    about = {name: result.get(name) for name in names}
    return {"run_id": result["id"], **about, "usage": result["usage"], "timing": result["timing"]}
