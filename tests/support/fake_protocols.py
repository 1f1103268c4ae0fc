"""A stand-in for vLLM's protocol handlers: chat completions that say fixed words, or what a search
finds, each of its tokens a character.

It checks what the product relies on, that requests are tagged, and records what it was asked.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from flashedge.api.sse import ClientGone, run_while_connected
from flashedge.engine.base import Chunk
from flashedge.engine.http_requests import (
    PlainRequest,
    PlainRequests,
    RequestTags,
    Searcher,
    SearchItem,
    SearchPrompt,
    end_with_request,
    get_request,
)
from flashedge.errors import DaemonStopping, FlashEdgeError
from flashedge.types import Message, Problem, Sampling

HEAD = {"id": "chatcmpl-1", "created": 1, "model": "bundled"}


@dataclass
class FakeProtocols:
    """An ASGI application. Words come `token_s` apart; `failure` is raised instead of an answer."""

    plain: PlainRequests = field(default_factory=PlainRequests)
    words: tuple[str, ...] = ("The", " answer", " is", " 2", ".")
    token_s: float = 0.0
    reasoning: str | None = None
    failure: Exception | None = None
    asked: list[tuple[str, dict[str, Any], RequestTags]] = field(default_factory=list)
    """Path, body and tags of each request."""
    open: int = 0
    closed: int = 0
    is_aborted: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        body = await request.json()
        self.asked.append((scope["path"], body, get_request().tags))
        if self.failure is not None:
            raise self.failure
        if not {"messages", "prompt", "input", "tokens"} & body.keys():
            error: dict[str, Any] = {"message": "nothing to answer", "type": "BadRequestError"}
            error |= {"param": None, "code": 400}
            await JSONResponse({"error": error}, status_code=400)(scope, receive, send)
            return
        stream, complete = partial(self._stream, body), partial(self._complete, body)
        if (searcher := get_request().searcher) is not None:
            found = self._start_search(searcher, body)
            stream, complete = partial(self._stream_search, found), partial(self._search, found)
        response: Response
        if body.get("stream"):
            response = StreamingResponse(stream(), media_type="text/event-stream")
        else:
            try:
                response = JSONResponse(await run_while_connected(receive, complete()))
            except ClientGone:
                return
        await response(scope, receive, send)

    def _start_search(self, searcher: Searcher, body: dict[str, Any]) -> AsyncGenerator[SearchItem]:
        searcher.check_admission()
        turns = body.get("messages") or [{"role": "user", "content": "hi"}]
        messages = tuple(Message(role=turn["role"], content=turn["content"]) for turn in turns)
        searcher.take_conversation(Problem(messages=messages))
        sampling = Sampling(temperature=body.get("temperature", 0.7))
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 1000
        prompt = SearchPrompt(
            token_ids=(1, 2, 3), sampling=sampling, max_tokens=limit, choices=body.get("n") or 1
        )
        return end_with_request(searcher.start(prompt))

    async def _search(self, found: AsyncGenerator[SearchItem]) -> dict[str, Any]:
        paths = [path async for item in found if isinstance(item, tuple) for path in item]
        return _build_completion([_read(path) for path in paths], None)

    async def _stream_search(self, found: AsyncGenerator[SearchItem]) -> AsyncGenerator[bytes]:
        try:
            yield self._frame({"role": "assistant", "content": ""})
            async for item in found:
                if isinstance(item, str):
                    yield self._frame({"reasoning": item})
                elif isinstance(item, tuple):
                    yield self._frame({"content": _read(item[0])})
            yield self._frame({}, finish="stop")
        except FlashEdgeError as error:
            fault = {"message": error.line, "code": error.code}
            yield b"data: " + json.dumps({"error": fault}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def _abort(self) -> None:
        self.is_aborted = True

    async def _say(self, body: dict[str, Any]) -> AsyncGenerator[str]:
        self.open += 1
        words = self.words[: body.get("max_tokens")]
        try:
            ask = PlainRequest(
                program="fake", choices=body.get("n") or 1, max_tokens=len(self.words)
            )
            with self.plain.open(ask, self._abort) as follow:
                for word in words:
                    await asyncio.sleep(self.token_s)
                    if self.is_aborted:
                        raise DaemonStopping("the daemon is stopping")
                    last = word is words[-1]
                    end = "stop" if len(words) == len(self.words) else "length"
                    follow(7, 1, (end,) if last else ())
                    yield word
        finally:
            self.open -= 1
            self.closed += 1

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        words = [word async for word in end_with_request(self._say(body))]
        usage = {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7}
        return {**_build_completion(["".join(words)], self.reasoning), "usage": usage}

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        async for word in end_with_request(self._say(body)):
            yield self._frame({"content": word})
        yield self._frame({}, finish="stop")
        yield b"data: [DONE]\n\n"

    def _frame(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        chunk = {**HEAD, "object": "chat.completion.chunk", "choices": choices}
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _build_completion(contents: list[str], reasoning: str | None) -> dict[str, Any]:
    said = {"role": "assistant", "reasoning": reasoning}
    choices = [
        {"index": i, "message": {**said, "content": content}, "finish_reason": "stop"}
        for i, content in enumerate(contents)
    ]
    return {**HEAD, "object": "chat.completion", "choices": choices}


def _read(path: Chunk) -> str:
    return "".join(map(chr, path.token_ids))
