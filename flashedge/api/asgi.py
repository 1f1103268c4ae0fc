"""What the wrappers of an ASGI `send` ask of the message that begins an answer."""

from __future__ import annotations

from starlette.types import Message


def begins_stream(message: Message) -> bool:
    """Whether an `http.response.start` begins a stream of server-sent events."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message["headers"]
    )


def drop_length(message: Message) -> Message:
    """An `http.response.start` without the length of its body, which a wrapper changes."""
    kept = [(name, v) for name, v in message["headers"] if name.lower() != b"content-length"]
    return {**message, "headers": kept}
