"""Records of loads and of timed runs, and a daemon that serves a load."""

import json
from typing import Any

import httpx

from flashedge import events
from flashedge.events import Event
from flashedge.scheduling.programs.program import Kind
from flashedge.types import NodeId
from scripts.lab.benchmark.live import LiveRun
from scripts.lab.benchmark.load.timings import End, ProgramRecord
from tests.support.fake_daemon import BatchDaemon, encode_events, refuse


def build_record(number: int = 0, **fields: Any) -> ProgramRecord:
    given = {
        "part": 0,
        "kind": Kind.SEARCH,
        "client": "a",
        "problem": "p",
        "arrived_s": 0.0,
        "end": End.FINISHED,
        "wait_s": 0.0,
        "first_token_s": 0.1,
        "latency_s": 1.0,
        "output_tokens": 10,
    }
    return ProgramRecord(number=number, **{**given, **fields})


def build_live_run(**fields: Any) -> LiveRun:
    given = {
        "rung": "stock",
        "kv": "plan",
        "n": 4,
        "problem": 0,
        "round": 0,
        "seconds": 2.0,
        "generate_s": 1.0,
        "verify_s": 1.0,
        "goodput": 10.0,
        "answer": "19",
        "tree": "aa",
        "tree_tokens": 14,
        "reuse": 0.0,
        "steps": 10,
        "kept_steps": 0,
        "drawn_tokens": 0,
    }
    return LiveRun(**{**given, **fields})


class LoadDaemon(BatchDaemon):
    """Serves chats and searches at once. The problem's first word says how each ends.

    "right" and "hard" finish (see `BatchDaemon`), "full" is refused because the queue is full, and
    "fail" ends in an error.
    """

    def submit(self, body: dict[str, Any]) -> Any:
        if body["problem"].startswith("full"):
            return refuse(503, "queue_full", **{"Retry-After": "0"})
        return super().submit(body)

    def send_events(self, run: str, after: int) -> Any:
        body, result = self.submitted[run], self.runs[run]
        items: list[Event] = [events.RunStarted(config=body, queue_s=0.0)]
        if result["status"] == "failed":
            items.append(events.RunFailed(error="it died", code="engine_dead"))
        else:
            items.append(events.Progress(tokens=((NodeId(1), 3),)))
            items.append(events.RunFinished(result=result))
        return httpx.Response(200, content=encode_events(list(enumerate(items, start=1))))

    def chat(self, body: dict[str, Any]) -> Any:
        text = body["messages"][0]["content"]
        if text.startswith("full"):
            return refuse(503, "queue_full", **{"Retry-After": "0"})
        parts = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"index": 0, "delta": {"content": "\\boxed{4}"}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 5}},
        ]
        lines = [f"data: {json.dumps(part)}\n\n" for part in parts]
        return httpx.Response(200, content="".join([*lines, "data: [DONE]\n\n"]).encode())
