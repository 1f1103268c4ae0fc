"""OpenAI chat completions as JSON objects and as stream chunks."""

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
    """The fields that all objects and chunks of one request share."""

    model: str
    include_usage: bool = False
    """Whether a streamed answer ends with a usage chunk."""

    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def build(
        self, choices: list[dict[str, Any]], usage: Mapping[str, Any], **extra: Any
    ) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
            **extra,
        }

    def build_chunk(
        self, delta: Mapping[str, Any], *, index: int = 0, finish: str | None = None, **extra: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._build_chunk(
            [choice], **({"usage": None} if self.include_usage else {}), **extra
        )

    def build_role_chunk(self, index: int = 0, **extra: Any) -> bytes:
        """The first chunk of a choice."""
        return self.build_chunk({"role": "assistant", "content": ""}, index=index, **extra)

    def build_end(self, usage: Mapping[str, Any]) -> bytes:
        return (self._build_chunk([], usage=usage) if self.include_usage else b"") + DONE

    def _build_chunk(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
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


def build_reasoning(text: str) -> dict[str, Any]:
    """The fields of a message or delta that hold a model's thinking: clients read one or the other
    name."""
    return {"reasoning": text, "reasoning_content": text}


def build_choice(index: int, text: str, finish: str, reasoning: str | None) -> dict[str, Any]:
    thought = build_reasoning(reasoning) if reasoning else {}
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None, **thought},
        "logprobs": None,
        "finish_reason": finish,
    }


def build_usage(
    prompt_tokens: int, completion_tokens: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """OpenAI's usage object.

    `completion_tokens` counts all generated tokens, `reasoning_tokens` those that are not in the
    answer's text.
    """
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def build_search_usage(result: Mapping[str, Any]) -> dict[str, Any]:
    """The usage of a search: the whole tree was generated, and the chosen path is the answer."""
    usage = result.get("usage") or {}
    tree, path = usage.get("tree_tokens", 0), usage.get("completion_tokens", 0)
    return build_usage(usage.get("prompt_tokens", 0), max(tree, path), max(tree - path, 0))


def find_finish_reason(result: Mapping[str, Any]) -> str:
    """How the chosen path ended: "stop", or "length" for a path that was cut."""
    choice, text = result.get("choice"), result.get("text")
    for path in result.get("completions") or ():
        if path.get("node") == choice if choice is not None else path.get("text") == text:
            return "stop" if path.get("finish_reason") == "stop" else "length"
    return "length"


def build_search_extra(result: Mapping[str, Any]) -> dict[str, Any]:
    """The `flashedge` object of a search's answer. /v1/runs/{run_id} has the rest."""
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
