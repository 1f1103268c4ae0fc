"""The shapes of OpenAI chat completions, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.api.sse import frame

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One request's identity. `include_usage`: a streamed answer ends with a usage chunk."""

    model: str
    include_usage: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(
        self, choices: list[dict[str, Any]], usage: Mapping[str, Any], **extra: Any
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
            **extra,
        }

    def chunk(
        self, delta: Mapping[str, Any], *, index: int = 0, finish: str | None = None, **extra: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._chunk([choice], **({"usage": None} if self.include_usage else {}), **extra)

    def role_chunk(self, index: int = 0, **extra: Any) -> bytes:
        """The first chunk of a choice."""
        return self.chunk({"role": "assistant", "content": ""}, index=index, **extra)

    def end(self, usage: Mapping[str, Any]) -> bytes:
        return (self._chunk([], usage=usage) if self.include_usage else b"") + DONE

    def _chunk(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        return frame(
            {
                "id": self.id,
                "object": "chat.completion.chunk",
                "created": self.created,
                "model": self.model,
                "choices": choices,
                **extra,
            }
        )


def choice_of(index: int, text: str, finish: str) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": None,
        "finish_reason": finish,
    }


def usage_of(
    prompt_tokens: int, completion_tokens: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """completion_tokens counts all that was generated, reasoning_tokens the part of it that is not
    in the answer's text."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def search_usage(result: Mapping[str, Any]) -> dict[str, Any]:
    """Usage of a search: the whole tree was generated, the chosen path is the answer."""
    usage = result.get("usage") or {}
    tree, path = usage.get("tree_tokens", 0), usage.get("completion_tokens", 0)
    return usage_of(usage.get("prompt_tokens", 0), max(tree, path), max(tree - path, 0))


def search_finish(result: Mapping[str, Any]) -> str:
    """How the chosen path ended: "stop", or "length" for any path that was cut."""
    choice, text = result.get("choice"), result.get("text")
    for path in result.get("completions") or ():
        if path.get("node") == choice if choice is not None else path.get("text") == text:
            return "stop" if path.get("finish_reason") == "stop" else "length"
    return "length"


def search_extra(result: Mapping[str, Any]) -> dict[str, Any]:
    """The `flashedge` object beside a search's answer; /v1/runs/{run_id} has the rest."""
    return {
        "run_id": result.get("id"),
        "strategy": result.get("strategy"),
        "n": result.get("n"),
        "seed": result.get("seed"),
        "answer": result.get("answer"),
        "votes": result.get("votes"),
        "certainty": result.get("certainty"),
        "usage": result.get("usage"),
        "timing": result.get("timing"),
    }
