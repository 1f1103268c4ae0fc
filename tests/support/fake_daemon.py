"""A daemon inside an httpx transport. It answers as the HTTP API does, from a script.

`FakeDaemon` serves one run, event by event; `BatchDaemon` and `EvalDaemon` start a run for each
submission and know its result at once.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx

from flashedge import events
from flashedge.events import Event, to_json
from flashedge.runtime.run import check_run_id
from tests.support.story import CHAT, RESULT, SCORES, STATUS, STORY, SUMMARY


class FakeDaemon(httpx.MockTransport):
    """Serves run-1, with the events of `story`, and remembers what it was asked."""

    cut_after: int | None = None
    """How many events the first stream has before it breaks."""
    status = "finished"
    """That of the run."""
    health, detail = "ready", None
    full = 0
    """How many submissions are refused first."""
    queued: Sequence[Mapping[str, Any]] = ({"position": 0},)
    """What the stream of a run tells of its place, before it starts."""

    def __init__(self, story: Sequence[Event] = STORY, **options: Any) -> None:
        """`options` are values of the attributes."""
        super().__init__(self.answer)
        self.story = list(enumerate(story, start=1))
        self.errors: dict[str, httpx.Response] = {}
        """Replies to requests such as "GET /v1/status", before any other."""
        self.requests: list[httpx.Request] = []
        self.submitted: dict[str, dict[str, Any]] = {}
        """Bodies of accepted runs, by id."""
        self.cancelled: list[str] = []
        self.deleted: list[str] = []
        vars(self).update(options)

    def bodies(self, path: str) -> list[Any]:
        """The bodies of all requests to `path`."""
        return [json.loads(r.content) for r in self.requests if r.url.path == path]

    def answer(self, request: httpx.Request) -> Any:
        """The reply, or an awaitable of it for asynchronous clients."""
        self.requests.append(request)
        key = f"{request.method} {request.url.path}"
        if key in self.errors:
            return self.errors[key]
        match [request.method, *request.url.path.strip("/").split("/")]:
            case ["POST", "v1", "runs" | "score"] if self.full > 0:
                self.full -= 1
                return refuse(503, "queue_full", **{"Retry-After": "0"})
            case ["POST", "v1", "runs"]:
                return self.submit(json.loads(request.content))
            case ["POST", "v1", "score"]:
                return self.score(json.loads(request.content))
            case ["GET", "v1", "runs", run]:
                return self.show(run)
            case ["GET", "v1", "runs", run, "events"]:
                return self.send_events(run, int(request.headers.get("last-event-id", 0)))
            case ["POST", "v1", "runs", run, "cancel"]:
                return self.cancel(run)
            case ["DELETE", "v1", "runs", run]:
                return self.delete(run)
            case ["GET", "health"]:
                code = 200 if self.health == "ready" else 503
                return httpx.Response(code, json={"status": self.health, "detail": self.detail})
            case ["GET", "v1", "status"]:
                return httpx.Response(200, json=STATUS)
            case ["POST", "v1", "solve"]:
                told = [json.dumps({"id": "run-1", **known}) for known in self.queued]
                queued = "".join(f"event: queued\ndata: {data}\n\n" for data in told)
                return stream(self.story[: self.cut_after], f"{queued}: ping\n\n", self.cut_after)
            case ["GET", "v1", "runs"]:
                return httpx.Response(200, json={"data": [SUMMARY], "has_more": False})
            case ["POST", "v1", "chat", "completions"]:
                return self.chat(json.loads(request.content))
        return refuse()

    def submit(self, body: dict[str, Any]) -> Any:
        return refuse()

    def score(self, body: dict[str, Any]) -> Any:
        return httpx.Response(200, json=SCORES)

    def chat(self, body: dict[str, Any]) -> Any:
        return httpx.Response(200, stream=CutStream(CHAT, None))

    def show(self, run: str) -> Any:
        known = httpx.Response(200, json={**RESULT, "status": self.status})
        return known if run == "run-1" else refuse()

    def send_events(self, run: str, after: int) -> Any:
        return stream(self.story[after:]) if run == "run-1" else refuse()

    def cancel(self, run: str) -> Any:
        if run != "run-1" and run not in self.submitted:
            return refuse()
        self.cancelled.append(run)
        return httpx.Response(200, json={"status": "cancelled"})

    def delete(self, run: str) -> Any:
        self.deleted.append(run)
        return httpx.Response(200, json={"deleted": True})


class BatchDaemon(FakeDaemon):
    """Keeps runs by name, for batches. The problem's first word says how its run ends.

    "right N" answers N; "wrong" answers 0; "hard N C" needs N tokens and has certainty C if it is
    cut short; "fail" ends in an error the first time; "long" is too long; "slow" never ends;
    "soon N" answers N after a dozen looks; "waits" is queued as long as `waits`.
    """

    waits = True
    lost = 0
    """How many connections break first."""
    looks = 0

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, dict[str, Any]] = {}
        self.failed_problems: set[str] = set()

    def answer(self, request: httpx.Request) -> Any:
        if self.lost > 0 and request.url.path.startswith("/v1/runs"):
            self.lost -= 1
            raise httpx.ConnectError("gone")
        return super().answer(request)

    def show(self, run: str) -> Any:
        if run not in self.runs:
            return refuse()
        self.looks += 1
        found = self.runs[run]
        if self.looks > 12 and "soon" in found:
            found |= found.pop("soon")
        return httpx.Response(200, json=found)

    def cancel(self, run: str) -> Any:
        if run not in self.runs:
            return refuse()
        self.runs[run]["status"] = "cancelled"
        self.cancelled.append(run)
        return httpx.Response(200, json=self.runs[run])

    def delete(self, run: str) -> Any:
        del self.runs[run]
        return super().delete(run)

    def submit(self, body: dict[str, Any]) -> Any:
        word, *words = body["problem"].split()
        if word == "long":
            return refuse(400, "context_length_exceeded")
        if body.get("branching") == 1000:
            return refuse()
        self.submitted.setdefault(body["id"], body)
        self.runs.setdefault(body["id"], self.finish(body, word, words))
        return accept(body)

    def finish(self, body: dict[str, Any], word: str, words: list[str]) -> dict[str, Any]:
        """The run's object."""
        run = {"id": body["id"], "status": "finished"}
        if word == "slow":
            return {**run, "status": "running"}
        if word == "soon":
            return {**run, "status": "running", "soon": self.finish(body, "right", words)}
        if word == "waits" and self.waits:
            return {**run, "status": "queued"}
        if word == "fail" and body["problem"] not in self.failed_problems:
            self.failed_problems.add(body["problem"])
            return {**run, "status": "failed", "error": {"code": "engine_dead", "message": "died"}}
        needed, certainty = (int(words[0]), float(words[1])) if word == "hard" else (10, 1.0)
        is_cut = word == "hard" and needed > body.get("token_budget", needed)
        return {
            **run,
            "answer": "0" if word == "wrong" or is_cut else words[0],
            "certainty": certainty,
            "cut_by": "budget" if is_cut else None,
            "usage": {"tree_tokens": body["token_budget"] if is_cut else needed},
            "timing": {"total_s": 0.5},
        }


class ScoreDaemon(FakeDaemon):
    """Scores a step by its length in hundredths. A text with "long" is too long. No request comes
    through where `is_down`."""

    is_down = False

    def score(self, body: dict[str, Any]) -> Any:
        if self.is_down:
            raise httpx.ConnectError("gone")
        if body.get("aggregate") == "max":
            return refuse(400, "invalid_request", message="no max", param="aggregate")
        given = body.get("solution", body.get("steps"))
        texts = [given] if isinstance(given, str) else given
        if any("long" in text for text in texts):
            return refuse(400, "context_length_exceeded", message="600 tokens", param="solution")
        data = []
        for index, text in enumerate(texts):
            steps = text.split("\n\n")
            scores = [len(step) / 100 for step in steps]
            one = {"score": scores[-1], "steps": steps, "step_scores": scores, "tokens": 9}
            data.append({"index": index, "object": "score", **one})
        aggregate = body.get("aggregate", "last")
        return httpx.Response(200, json={"aggregate": aggregate, "data": data})


class EvalDaemon(FakeDaemon):
    """Ends every run of an evaluation with a result that is known beforehand."""

    hold: frozenset[str] = frozenset()
    """Problems whose samples never end."""
    failures: Mapping[str, str] = MappingProxyType({})
    """The error codes of problems whose runs fail."""
    cuts = 0
    """How many streams end early first."""

    def __init__(
        self, samples: list[dict[str, Any]], greedy: str, beams: dict[int, str], **options: Any
    ) -> None:
        """`samples` are the chains of every problem; `greedy` and `beams` (by n) the answers."""
        super().__init__(**options)
        self.samples, self.greedy, self.beams = samples, greedy, beams

    def answer(self, request: httpx.Request) -> Any:
        """An evaluation submits runs and follows them; whatever else it asks for is refused."""
        path = request.url.path
        is_needed = path.startswith("/v1/runs/") or (request.method, path) == ("POST", "/v1/runs")
        return super().answer(request) if is_needed else refuse()

    def submit(self, body: dict[str, Any]) -> Any:
        check_run_id(body["id"])
        assert body["id"] not in self.submitted
        self.submitted[body["id"]] = body
        return accept(body)

    def show(self, run: str) -> Any:
        return httpx.Response(200, json={"status": "running"})

    async def send_events(self, run: str, after: int) -> httpx.Response:
        body = self.submitted[run]
        if body["problem"] in self.hold and body["strategy"] == "best_of_n" and body["n"] > 1:
            await asyncio.Event().wait()
        event: Event = events.RunFinished(result=self.build_result(run, body))
        if self.cuts > 0:
            self.cuts -= 1
            event = events.CertaintyUpdated(certainty=1.0, answers=1)
        elif code := self.failures.get(body["problem"]):
            event = events.RunFailed(error="it failed", code=code)
        return httpx.Response(200, content=encode_events([(1, event)]))

    def build_result(self, run: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.greedy if body["n"] == 1 else None
        if body["strategy"] == "beam":
            answer = self.beams[body["n"]]
        completions = self.samples[: body["n"]] if answer is None else []
        text = f"\\boxed{{{answer}}}"
        return {"id": run, "answer": answer, "text": text, "completions": completions}


def build_completion(answer: str | None, *scores: float) -> dict[str, Any]:
    """A sampled chain with one score per step."""
    before = len(scores) - 1
    text = "Step.\n\n" * before + f"The answer is \\boxed{{{answer}}}."
    ids = [2, 3, 1] * before + [4, 5]
    return {"text": text, "token_ids": ids, "step_scores": list(scores), "answer": answer}


def accept(body: dict[str, Any]) -> httpx.Response:
    return httpx.Response(202, json={"id": body["id"], "status": "queued", "position": 0})


def refuse(
    status: int = 404, code: str = "not_found", message: str = "", param: str = "", **headers: str
) -> httpx.Response:
    error = {"message": message or f"refused: {code}", "code": code, "param": param or None}
    return httpx.Response(status, json={"error": error}, headers=headers)


def encode_events(items: Iterable[tuple[int, Event]]) -> bytes:
    frames = [(number, to_json(event)) for number, event in items]
    parts = (f"id: {n}\nevent: {d['type']}\ndata: {json.dumps(d)}\n\n" for n, d in frames)
    return "".join(parts).encode()


def stream(
    story: Iterable[tuple[int, Event]], head: str = "", cut_after: int | None = None
) -> httpx.Response:
    error = None if cut_after is None else httpx.ReadError
    return httpx.Response(200, stream=CutStream(head.encode() + encode_events(story), error))


class CutStream(httpx.SyncByteStream):
    """A body in small pieces, which ends in a broken connection if there is an error."""

    def __init__(self, body: bytes, error: type[BaseException] | None = httpx.ReadError) -> None:
        self._body, self._error = body, error

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), 37):  # frames never arrive as they were sent
            yield self._body[start : start + 37]
        if self._error is not None:
            raise self._error("cut")
