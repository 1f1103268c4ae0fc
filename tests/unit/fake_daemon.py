"""A daemon in a transport: answers as the HTTP API does, from a script of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from flashedge import events
from flashedge.events import Event, to_json

RESULT: dict[str, Any] = {
    "id": "run-1",
    "status": "finished",
    "pair": "bundled",
    "strategy": "beam",
    "n": 2,
    "answer": "19",
    "text": "12 + 7 = 19.\n\nThe answer is \\boxed{19}.",
    "choice": 3,
    "votes": [
        {"answer": "19", "weight": 0.9, "count": 1},
        {"answer": "18", "weight": 0.2, "count": 1},
    ],
    "completions": [],
    "tree": {
        "root": 0,
        "nodes": [
            {"id": 0, "parent": None, "tokens": 0, "text": "", "score": None, "status": "active"},
            {"id": 1, "parent": 0, "tokens": 5, "text": "12 + 7", "score": 0.9, "status": "active"},
        ],
    },
    "certainty": 0.5,
    "usage": {"tree_tokens": 14},
    "timing": {"total_s": 0.25},
}


def step(node: int, text: str, tokens: int = 5, finish: str = "boundary") -> Event:
    return events.StepCompleted(
        node=node,
        token_ids=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        text=text,
        steps=(text,),
        finish=finish,
    )


STORY: list[Event] = [
    events.RunStarted(config={"n": 2}, queue_s=0.01),
    events.NodesExpanded(parent=0, depth=1, children=((1, 0, 7), (2, 1, 8))),
    events.Progress(tokens=((1, 3), (2, 2))),
    step(1, "12 + 7 = 19.\n\n"),
    step(2, "12 + 7 = 18.\n\n"),
    events.NodeScored(node=1, scores=(0.9,), score=0.9),
    events.NodeScored(node=2, scores=(0.2,), score=0.2),
    events.NodesMarked(status="active", nodes=(1, 2)),
    events.NodesMarked(status="pruned", nodes=(2,)),
    events.NodesExpanded(parent=1, depth=2, children=((3, 0, 9),)),
    step(3, "The answer is \\boxed{19}.", tokens=4, finish="stop"),
    events.NodeScored(node=3, scores=(0.95,), score=0.95),
    events.NodesMarked(status="complete", nodes=(3,)),
    events.CertaintyUpdated(certainty=1.0, answers=1),
    events.RunFinished(result=RESULT),
]


def sse(numbered: list[tuple[int, Event]]) -> bytes:
    parts = []
    for number, event in numbered:
        data = to_json(event)
        parts.append(f"id: {number}\nevent: {data['type']}\ndata: {json.dumps(data)}\n\n")
    return "".join(parts).encode()


class Cut(httpx.SyncByteStream):
    """A body that ends in a broken connection."""

    def __init__(self, body: bytes, error: type[Exception] | None = httpx.ReadError) -> None:
        self._body, self._error = body, error

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), 37):  # frames never arrive as they were sent
            yield self._body[start : start + 37]
        if self._error is not None:
            raise self._error("cut")


class FakeDaemon(httpx.MockTransport):
    """cut_after: events of the first stream before its connection breaks; status: of run-1."""

    def __init__(
        self,
        story: list[Event] | None = None,
        *,
        cut_after: int | None = None,
        status: str = "finished",
        errors: dict[str, httpx.Response] | None = None,
        health: str = "ready",
    ) -> None:
        super().__init__(self.answer)
        self.story = list(enumerate(STORY if story is None else story, start=1))
        self.cut_after, self.status, self.health = cut_after, status, health
        self.errors = errors or {}
        self.requests: list[httpx.Request] = []
        self.cancelled: list[str] = []

    def bodies(self, path: str) -> list[Any]:
        return [json.loads(r.content) for r in self.requests if r.url.path == path]

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        key = f"{request.method} {request.url.path}"
        if key in self.errors:
            return self.errors[key]
        match key:
            case "GET /health":
                code = 200 if self.health == "ready" else 503
                return httpx.Response(code, json={"status": self.health, "detail": None})
            case "GET /v1/status":
                return httpx.Response(200, json=STATUS)
            case "POST /v1/solve":
                queued = b'event: queued\ndata: {"id": "run-1", "position": 0}\n\n: ping\n\n'
                return self.stream(queued, self.story, self.cut_after)
            case "GET /v1/runs/run-1/events":
                after = int(request.headers.get("last-event-id", 0))
                return self.stream(b"", [s for s in self.story if s[0] > after], None)
            case "GET /v1/runs/run-1":
                return httpx.Response(200, json={**RESULT, "status": self.status})
            case "POST /v1/runs/run-1/cancel":
                self.cancelled.append("run-1")
                return httpx.Response(200, json={"status": "cancelled"})
            case "DELETE /v1/runs/run-1":
                return httpx.Response(204)
            case "GET /v1/runs":
                return httpx.Response(200, json={"data": [SUMMARY], "has_more": False})
            case "POST /v1/chat/completions":
                return httpx.Response(200, stream=Cut(CHAT, None))
        told = {"message": f"no such thing: {key}", "code": "not_found"}
        return httpx.Response(404, json={"error": told})

    def stream(
        self, head: bytes, story: list[tuple[int, Event]], cut: int | None
    ) -> httpx.Response:
        error = None if cut is None else httpx.ReadError
        return httpx.Response(200, stream=Cut(head + sse(story[:cut]), error))


STATUS = {
    "version": "0.1.0",
    "pair": "bundled",
    "runs": {"queued": 1, "running": 2},
    "engines": {
        "generator": {
            "state": "ready",
            "pid": 11,
            "restarts": 0,
            "view": {"running": 3, "waiting": 0, "blocks_used": 4, "quota_blocks": 64},
        },
        "verifier": {"state": "dead", "pid": None, "restarts": 2, "view": None},
    },
}
SUMMARY = {
    "id": "run-1",
    "status": "finished",
    "created_at": 1_700_000_000.0,
    "strategy": "beam",
    "n": 2,
    "pair": "bundled",
    "problem": "What is 12 + 7?",
    "answer": "19",
    "tree_tokens": 14,
    "total_s": 0.25,
}


def chat_chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n"


CHAT = (
    chat_chunk({"role": "assistant", "content": ""})
    + chat_chunk({"content": "Hello\u2028 "})
    + chat_chunk({"content": "there"}, "stop")
    + 'data: {"choices": [], "usage": {"total_tokens": 5}}\n\ndata: [DONE]\n\n'
).encode()
