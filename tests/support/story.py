"""What `FakeDaemon` serves: one run of a beam search, its events and its result."""

from __future__ import annotations

import json
from typing import Any

from flashedge import events
from flashedge.events import Event

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


def build_step(node: int, text: str, tokens: int = 5, finish: str = "boundary") -> Event:
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
    build_step(1, "12 + 7 = 19.\n\n"),
    build_step(2, "12 + 7 = 18.\n\n"),
    events.NodeScored(node=1, scores=(0.9,), score=0.9),
    events.NodeScored(node=2, scores=(0.2,), score=0.2),
    events.NodesMarked(status="active", nodes=(1, 2)),
    events.NodesMarked(status="pruned", nodes=(2,)),
    events.NodesExpanded(parent=1, depth=2, children=((3, 0, 9),)),
    build_step(3, "The answer is \\boxed{19}.", tokens=4, finish="stop"),
    events.NodeScored(node=3, scores=(0.95,), score=0.95),
    events.NodesMarked(status="complete", nodes=(3,)),
    events.CertaintyUpdated(certainty=1.0, answers=1),
    events.RunFinished(result=RESULT),
]

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


def encode_chat_chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n"


CHAT = (
    encode_chat_chunk({"role": "assistant", "content": ""})
    + encode_chat_chunk({"content": "Hello\u2028 "})
    + encode_chat_chunk({"content": "there"}, "stop")
    + 'data: {"choices": [], "usage": {"total_tokens": 5}}\n\ndata: [DONE]\n\n'
).encode()
