"""What `FakeDaemon` serves: one run of a beam search, its events and its result."""

import json
from typing import Any

from flashedge import events
from flashedge.events import Event
from flashedge.runtime.request.plan import Plan
from flashedge.runtime.request.validation import Request
from flashedge.types import Problem
from tests.support.made_run import build_result, build_row, build_start, build_step, build_usage

VOTES = [{"answer": "19", "weight": 0.9, "count": 1}, {"answer": "18", "weight": 0.2, "count": 1}]
NODES = [
    {"id": 0, "parent": None, "tokens": 0, "text": "", "score": None, "status": "active"},
    {"id": 1, "parent": 0, "tokens": 5, "text": "12 + 7", "score": 0.9, "status": "active"},
]
RESULT = build_result(
    answer="19",
    text="12 + 7 = 19.\n\nThe answer is \\boxed{19}.",
    choice=3,
    votes=VOTES,
    tree={"root": 0, "nodes": NODES},
    certainty=0.5,
    usage=build_usage(tree_tokens=14),
)
STEPS = (("12 + 7 = 19.\n\n", 0.9), ("12 + 7 = 18.\n\n", 0.2))
PLAN = Plan(request=Request(problem=Problem.from_text("12 + 7 = ?"), pair="bundled", n=2))
STORY: list[Event] = [
    *build_start(PLAN.to_json(), STEPS, queue_s=0.01, tokens=5),
    events.NodesMarked(status="active", nodes=(1, 2)),
    events.NodesMarked(status="pruned", nodes=(2,)),
    events.NodesExpanded(parent=1, depth=2, children=((3, 0, 9),)),
    build_step(3, "The answer is \\boxed{19}.", tokens=4, finish="stop"),
    events.NodeScored(node=3, scores=(0.95,), score=0.95),
    events.NodesMarked(status="complete", nodes=(3,)),
    events.CertaintyUpdated(certainty=1.0, answers=1),
    events.RunFinished(result=RESULT),
]

STANDING = {
    "key": "run-5eab91940b5d",
    "client": "cli",
    "kind": "search",
    "place": 0,
    "has_started": False,
    "waited_s": 3.2,
    "left_tokens": 6800.0,
    "starts_in_s": 12.3,
    "median_tokens": 420.4,
    "tail_tokens": 1532.1,
}
RUNNING = {
    "key": "run-3bd232185d21",
    "place": None,
    "has_started": True,
    "starts_in_s": None,
    "median_tokens": None,
    "tail_tokens": None,
}
NAMED = {"key": "my-long-research-agent/task-7", "client": "my-agent", "kind": "batch", "place": 1}
REQUEST = {"key": "chatcmpl-1", "client": "person", "kind": "chat", "has_started": False}
PROGRAMS = (
    {**STANDING, **RUNNING, **REQUEST},
    {**STANDING, **RUNNING},
    STANDING,
    {**STANDING, **NAMED, "starts_in_s": None},
)
VIEW = {"running": 3, "waiting": 0, "blocks_used": 4, "quota_blocks": 64}
ENGINES = {
    "generator": {"state": "ready", "pid": 11, "restarts": 0, "view": VIEW},
    "verifier": {"state": "dead", "pid": None, "restarts": 2, "view": None},
}
RUNS = {"queued": 1, "running": 2}
STATUS = {
    "version": "0.1.0",
    "pair": "bundled",
    "runs": RUNS,
    "engines": ENGINES,
    "scheduling": {"policy": "shortest", "programs": list(PROGRAMS)},
    "self_test": {"batch_invariant": True, "invariant_tokens": 4096},
    "pairs": {"bundled": {"state": "degraded", "detail": None, "engines": ENGINES, "runs": RUNS}},
}
SUMMARY = build_row(RESULT, created_at=1_700_000_000.0)

SCORES = {
    "aggregate": "last",
    "data": [{"index": 0, "score": 0.9, "steps": ["So 19."], "step_scores": [0.9], "tokens": 9}],
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
