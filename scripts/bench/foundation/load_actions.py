"""Requests of all kinds, for `mixed_load`: what an agent, a script and a careless client send."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

PAIR = "bundled"
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
SEARCHES = ("beam-4", "self_consistency-4", "best_of_n-4", "rebase-4", "dvts-4", "mcts-4")
LEAVES_AFTER_S = 0.6
"""A client that leaves does so after at most this long."""


@dataclass(slots=True)
class Seen:
    """The answers that a client got, counted."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    """By action: how many answers had each HTTP status."""

    left: int = 0
    """Clients that left in the middle of an answer."""

    faults: list[str] = field(default_factory=list)
    """Answers that no client should get, in words."""

    def note(self, action: str, status: int, text: str, allowed: Sequence[int]) -> None:
        self.statuses.setdefault(action, Counter())[status] += 1
        if status not in allowed:
            self.faults.append(f"{action}: {status} {text[:200]}")


class Actions:
    """Draws a request and makes it."""

    def __init__(self, client: httpx.AsyncClient, problems: Sequence[str], seed: int) -> None:
        self.seen = Seen()
        self._client = client
        self._problems = problems
        self._draw = random.Random(seed)
        self._all: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "chat": self._chat,
            "streamed chat": self._stream,
            "client that leaves": self._leave,
            "client that leaves a search": self._leave_search,
            "tool call": self._call,
            "schema": self._schema,
            "search": self._search,
            "solve": self._solve,
            "responses": self._responses,
            "messages": self._messages,
            "cancelled run": self._cancel,
            "bad request": self._send_bad,
            "status": self._look,
        }

    async def make_one(self) -> None:
        """Make one request. A connection that breaks is a fault."""
        action = self._draw.choice(list(self._all))
        try:
            await self._all[action](action)
        except httpx.HTTPError as error:
            self.seen.faults.append(f"{action}: {type(error).__name__} {error}")

    def _ask(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": self._draw.choice(self._problems)}]
        return {"model": PAIR, "messages": messages, "max_tokens": 96, **fields}

    def _name_search(self) -> str:
        return f"{PAIR}:{self._draw.choice(SEARCHES)}"

    async def _post(
        self, action: str, path: str, body: Any, allowed: Sequence[int] = (200,)
    ) -> httpx.Response:
        answer = await self._client.post(path, json=body)
        self.seen.note(action, answer.status_code, answer.text, (*allowed, 503))
        return answer

    async def _chat(self, action: str) -> None:
        await self._post(action, "/v1/chat/completions", self._ask(n=self._draw.randint(1, 4)))

    async def _stream(self, action: str) -> None:
        await self._read(action, "/v1/chat/completions", self._ask(stream=True), None)

    async def _leave(self, action: str) -> None:
        await self._read(
            action,
            "/v1/chat/completions",
            self._ask(stream=True, max_tokens=600, n=self._draw.randint(1, 4)),
            self._draw.random() * LEAVES_AFTER_S,
        )

    async def _leave_search(self, action: str) -> None:
        body = {"problem": self._draw.choice(self._problems), "n": 32, "stream": True}
        await self._read(action, "/v1/solve", body, self._draw.random() * LEAVES_AFTER_S)

    async def _read(self, action: str, path: str, body: Any, leave_s: float | None) -> None:
        """Read a stream to its end, or leave after so many seconds."""
        try:
            async with (
                asyncio.timeout(leave_s),
                self._client.stream("POST", path, json=body) as answer,
            ):
                text = "".join([part async for part in answer.aiter_text()])
        except TimeoutError:
            self.seen.left += 1
            return
        self.seen.note(action, answer.status_code, text, (200, 503))

    async def _call(self, action: str) -> None:
        body = self._ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        answer = await self._post(action, "/v1/chat/completions", body)
        if answer.status_code == 200:
            call = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
            if set(json.loads(call["arguments"])) != {"a", "b"}:
                self.seen.faults.append(f"{action}: {call}")

    async def _schema(self, action: str) -> None:
        schema = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
        model = self._draw.choice((PAIR, self._name_search()))
        body = self._ask(model=model, response_format=schema)
        await self._post(action, "/v1/chat/completions", body)

    async def _search(self, action: str) -> None:
        body = self._ask(model=self._name_search(), max_tokens=400)
        await self._post(action, "/v1/chat/completions", body)

    async def _solve(self, action: str) -> None:
        body = {"problem": self._draw.choice(self._problems), "n": self._draw.choice((1, 4, 8))}
        await self._post(action, "/v1/solve", body)

    async def _responses(self, action: str) -> None:
        problem = self._draw.choice(self._problems)
        body = {"model": PAIR, "input": problem, "max_output_tokens": 64}
        await self._post(action, "/v1/responses", body)

    async def _messages(self, action: str) -> None:
        await self._post(action, "/v1/messages", self._ask())

    async def _cancel(self, action: str) -> None:
        body = {"problem": self._draw.choice(self._problems), "n": 32}
        answer = await self._post(action, "/v1/runs", body, (202,))
        if answer.status_code == 202:
            await asyncio.sleep(self._draw.random() * LEAVES_AFTER_S)
            path = f"/v1/runs/{answer.json()['id']}/cancel"
            await self._post(action, path, {}, (200, 202, 409))

    async def _send_bad(self, action: str) -> None:
        too_long = [{"role": "user", "content": "1" * 9000}]
        path, body = self._draw.choice(
            (
                ("/v1/chat/completions", self._ask(model="nobody")),
                ("/v1/chat/completions", {"model": PAIR}),
                ("/v1/chat/completions", self._ask(temperature=-3)),
                ("/v1/chat/completions", self._ask(messages=too_long)),
                ("/v1/solve", {"problem": "", "n": 4}),
                ("/v1/solve", {"problem": "1+1", "strategy": "magic"}),
                ("/v1/responses", {"input": 3}),
                ("/v1/messages", {"model": PAIR}),
            )
        )
        await self._post(action, path, body, (400, 404))

    async def _look(self, action: str) -> None:
        for path in ("/health", "/v1/status", "/metrics", "/v1/models", "/v1/runs?limit=50"):
            answer = await self._client.get(path)
            self.seen.note(action, answer.status_code, answer.text, (200, 503))
