"""Parse server-sent events. A pure function of bytes; lines end with \\n, \\r\\n or \\r only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One server-sent event."""

    event: str
    data: str

    id: str | None = None
    """The id in its own lines. An earlier event's id does not carry over."""


def parse_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """The frames of a stream. Comments (pings) and an incomplete last frame are dropped."""
    event, number, data = "", None, list[str]()
    for line in _split_lines(chunks):
        if not line:
            if data:
                yield Frame(event=event or "message", data="\n".join(data), id=number)
            event, number, data = "", None, []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            number = value


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        rest += chunk
        is_ambiguous = rest.endswith(b"\r")  # a \n may follow in the next chunk
        body, tail = (rest[:-1], b"\r") if is_ambiguous else (rest, b"")
        *whole, rest = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += tail
        for line in whole:
            yield line.decode("utf-8", errors="replace")
