"""Streamed replies of /v1/chat/completions, for both clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashedge.client.replies import parse_error, parse_frame
from flashedge.client.sse import Frame
from flashedge.errors import DaemonError
from flashedge.types import Message

PATH = "/v1/chat/completions"
DONE = "[DONE]"
"""The data of a stream's last frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPiece:
    """A part of a streamed reply."""

    text: str = ""
    reasoning: str = ""

    finish: str | None = None
    """Why the reply ended. None in all parts but one of the last."""

    usage: Mapping[str, Any] | None = None
    """Token counts of the whole reply. None in all parts but one of the last."""


def build_chat_body(
    messages: Sequence[Message], model: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of a request that streams one reply. Options that are None are left out."""
    return {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{k: v for k, v in options.items() if v is not None},
    }


def parse_chat_frame(frame: Frame) -> Iterator[ChatPiece]:
    """The parts in one frame that is not the last. Raises the error that it reports."""
    data = parse_frame(frame)
    if "error" in data:
        raise parse_error(data, 500)
    usage = data.get("usage")
    for choice in data.get("choices") or [{}]:
        delta = choice.get("delta") or {}
        yield ChatPiece(
            text=delta.get("content") or "",
            reasoning=delta.get("reasoning_content") or "",
            finish=choice.get("finish_reason"),
            usage=usage,
        )


def explain_cut_reply() -> DaemonError:
    """The error of a stream that closed before its last frame."""
    return DaemonError("the daemon went away in the middle of its reply")
