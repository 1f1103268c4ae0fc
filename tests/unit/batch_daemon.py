"""A daemon that keeps runs by name, for batches: what it answers follows from the problem's text.

A problem is "WORD …": "right N" answers N; "wrong"; "hard N C" needs N tokens and is sure by C when
cut short; "fail" ends in an error the first time; "long" is too long; "slow" never ends.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from fake_daemon import FakeDaemon


class BatchDaemon(FakeDaemon):
    """full: answers of 503 before it takes a run; lost: connections that break."""

    def __init__(self, *, full: int = 0, lost: int = 0) -> None:
        super().__init__()
        self.full, self.lost = full, lost
        self.runs: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, dict[str, Any]] = {}
        self.failures: set[str] = set()
        self.looks = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.strip("/").split("/")
        if parts[:2] != ["v1", "runs"]:
            return super().answer(request)
        if self.lost > 0:
            self.lost -= 1
            raise httpx.ConnectError("gone")
        if len(parts) == 2:
            return self.take(json.loads(request.content))
        run = self.runs.get(parts[2])
        if run is None:
            return refused(404, "not_found")
        if parts[3:] == ["cancel"]:
            run["status"] = "cancelled"
            self.cancelled.append(run["id"])
        self.looks += 1
        return httpx.Response(200, json=run)

    def take(self, body: dict[str, Any]) -> httpx.Response:
        if self.full > 0:
            self.full -= 1
            return refused(503, "queue_full", **{"Retry-After": "0"})
        word = body["problem"].split()[0]
        if word == "long":
            return refused(400, "context_length_exceeded")
        if body.get("branching") == 0:
            return refused(404, "not_found")
        self.asked.setdefault(body["id"], body)
        self.runs.setdefault(body["id"], self.ended(body, word))
        return httpx.Response(202, json={"id": body["id"], "status": "queued", "position": 0})

    def ended(self, body: dict[str, Any], word: str) -> dict[str, Any]:
        run = {"id": body["id"], "status": "finished"}
        if word == "slow":
            return {**run, "status": "running"}
        if word == "fail" and body["problem"] not in self.failures:
            self.failures.add(body["problem"])
            return {**run, "status": "failed", "error": {"code": "engine_dead", "message": "died"}}
        said = body["problem"].split()[1:]
        needs, sure, cut = 10, 1.0, False
        if word == "hard":
            needs, sure = int(said[0]), float(said[1])
            cut = needs > body.get("token_budget", needs)
        return {
            **run,
            "answer": "0" if word == "wrong" or cut else said[0],
            "certainty": sure,
            "cut_by": "budget" if cut else None,
            "usage": {"tree_tokens": body["token_budget"] if cut else needs},
            "timing": {"total_s": 0.5},
        }


def refused(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"error": {"message": f"refused: {code}", "code": code, "param": None}}
    return httpx.Response(status, json=body, headers=headers)
