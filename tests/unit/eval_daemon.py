"""A daemon in a transport that answers the runs of an evaluation, with known right and wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from flashedge import events
from flashedge.events import Event, to_json
from flashedge.runtime.run import check_run_id


def completion(answer: str | None, *scores: float) -> dict[str, Any]:
    text = "Step.\n\n" * (len(scores) - 1) + f"The answer is \\boxed{{{answer}}}."
    return {
        "text": text,
        "token_ids": [2, 3, 1] * (len(scores) - 1) + [4, 5],
        "step_scores": list(scores),
        "answer": answer,
    }


class EvalDaemon(httpx.MockTransport):
    """samples: the chains of every problem; greedy, beams (by n): the answers chosen.

    hold: problems whose samples never end; errors: what a problem's runs fail with; full: how
    often a submission is refused first; cuts: how often a stream breaks before its last event.
    """

    def __init__(
        self,
        samples: list[dict[str, Any]],
        greedy: str,
        beams: dict[int, str],
        *,
        hold: frozenset[str] = frozenset(),
        errors: dict[str, str] | None = None,
        full: int = 0,
        cuts: int = 0,
    ) -> None:
        super().__init__(self.answer)
        self.samples, self.greedy, self.beams = samples, greedy, beams
        self.hold, self.errors, self.full, self.cuts = hold, errors or {}, full, cuts
        self.bodies: dict[str, dict[str, Any]] = {}
        self.cancelled: list[str] = []
        self.deleted: list[str] = []
        self.holding = asyncio.Event()

    async def answer(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.split("/")
        if request.method == "POST" and parts[-1] == "runs":
            return self._submitted(json.loads(request.content))
        run = parts[3]
        if request.method == "DELETE":
            self.deleted.append(run)
            return httpx.Response(200, json={"deleted": True})
        if parts[-1] == "cancel":
            self.cancelled.append(run)
            return httpx.Response(200, json={"status": "cancelled"})
        if parts[-1] != "events":
            return httpx.Response(200, json={"status": "running"})
        body = self.bodies[run]
        if body["problem"] in self.hold and body["strategy"] == "best_of_n" and body["n"] > 1:
            self.holding.set()
            await asyncio.Event().wait()
        if self.cuts > 0:
            self.cuts -= 1
            return self._stream(events.CertaintyUpdated(certainty=1.0, answers=1))
        if code := self.errors.get(body["problem"]):
            return self._stream(events.RunFailed(error="it failed", code=code))
        return self._stream(events.RunFinished(result=self._result(run, body)))

    def _submitted(self, body: dict[str, Any]) -> httpx.Response:
        if self.full > 0:
            self.full -= 1
            error = {"message": "full", "code": "queue_full"}
            return httpx.Response(503, json={"error": error}, headers={"retry-after": "0"})
        check_run_id(body["id"])
        assert body["id"] not in self.bodies
        self.bodies[body["id"]] = body
        return httpx.Response(202, json={"id": body["id"], "status": "queued", "position": 0})

    def _result(self, run: str, body: dict[str, Any]) -> dict[str, Any]:
        chosen = self.greedy if body["n"] == 1 else None
        if body["strategy"] == "beam":
            chosen = self.beams[body["n"]]
        done = self.samples[: body["n"]] if chosen is None else []
        text = f"\\boxed{{{chosen}}}"
        return {"id": run, "answer": chosen, "text": text, "completions": done}

    def _stream(self, event: Event) -> httpx.Response:
        data = to_json(event)
        frame = f"id: 1\nevent: {data['type']}\ndata: {json.dumps(data)}\n\n"
        return httpx.Response(200, content=frame.encode())
