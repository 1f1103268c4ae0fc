"""Server-sent events as frames. A pure fold over bytes; lines end with \\n, \\r\\n or \\r only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One event. `id` is that of its own lines, None when it had none."""

    event: str
    data: str
    id: str | None = None


def frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Frames of a stream; comments (pings) and an unfinished last frame are dropped."""
    event, number, data = "", None, list[str]()
    for line in _lines(chunks):
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


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        rest += chunk
        held = rest.endswith(b"\r")  # its \n may come with the next chunk
        body, tail = (rest[:-1], b"\r") if held else (rest, b"")
        *whole, rest = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += tail
        for line in whole:
            yield line.decode("utf-8", errors="replace")
