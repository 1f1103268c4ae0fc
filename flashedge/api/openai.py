"""OpenAI's API: /v1/models and /v1/chat/completions, as plain chat or as a search."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from flashedge.api.bodies import describe_body, read_body
from flashedge.api.completions import (
    Completion,
    build_choice,
    build_reasoning,
    build_search_extra,
    build_search_usage,
    build_usage,
    find_finish_reason,
)
from flashedge.api.contract import Defaults, HandlePort, ServicePort
from flashedge.api.failures import Json, Refusal, RunFault
from flashedge.api.schemas import ChatBody
from flashedge.api.specs import (
    ModelName,
    build_chat_search_spec,
    build_chat_spec,
    choose_search,
    refuse_unsupported,
)
from flashedge.api.sse import ClientGone, EventStream, closing, run_while_connected
from flashedge.events import NodeScored, RunCancelled, RunFailed, RunFinished, StepCompleted
from flashedge.runtime.chat import ChatDelta, ChatSpec
from flashedge.runtime.metrics import Metrics

DISCONNECTED = "the client disconnected"


def openai_router(service: ServicePort, defaults: Defaults) -> APIRouter:
    router = APIRouter(prefix="/v1")
    since = int(time.time())

    def model_object(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": since, "owned_by": "flashedge"}

    @router.get("/models")
    async def models() -> Response:
        return Json({"object": "list", "data": [model_object(service.pair)]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        ModelName.parse(name, service.pair)
        return Json(model_object(name))

    @router.post("/chat/completions", openapi_extra=describe_body(ChatBody))
    async def complete(request: Request) -> Response:
        """A chat completion. It is cancelled when the client disconnects."""
        body = await read_body(request, ChatBody)
        refuse_unsupported(body)
        model = ModelName.parse(body.model, service.pair)
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        completion = Completion(model=body.model, include_usage=wants_usage)
        search = choose_search(body, model)
        if search is None:
            spec = build_chat_spec(body, defaults)
            if body.stream:
                return EventStream(_stream_chat(service, spec, completion))
            try:
                return Json(
                    await run_while_connected(request, _complete_chat(service, spec, completion))
                )
            except ClientGone:
                return Response(status_code=499)
        return await _complete_search(
            request,
            service.submit(build_chat_search_spec(body, model, search, defaults)),
            completion,
            body,
        )

    return router


# ---------------------------------------------------------------- plain


@dataclass(slots=True)
class _Tally:
    """The cost of a plain completion. The metrics receive it once, however it ends."""

    n: int
    metrics: Metrics
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    finishes: dict[int, str] = field(default_factory=dict)
    first_token_s: float | None = None
    started: float = field(default_factory=time.monotonic)

    def add(self, delta: ChatDelta) -> None:
        new_tokens = len(delta.token_ids)
        self.prompt_tokens = delta.prompt_tokens
        self.completion_tokens += new_tokens
        self.reasoning_tokens += new_tokens if delta.reasoning else 0
        if delta.finish:
            self.finishes[delta.index] = delta.finish
        if new_tokens and self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.started

    def report(self, error: BaseException | None) -> None:
        finish = "error" if isinstance(error, Exception) else "cancelled"
        if len(self.finishes) == self.n:
            finish = "length" if "length" in self.finishes.values() else "stop"
        self.metrics.observe_chat(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            first_token_s=self.first_token_s,
            total_s=time.monotonic() - self.started,
            finish=finish,
        )

    @property
    def usage(self) -> dict[str, Any]:
        return build_usage(self.prompt_tokens, self.completion_tokens, self.reasoning_tokens)


async def _complete_chat(
    service: ServicePort, spec: ChatSpec, completion: Completion
) -> dict[str, Any]:
    texts, thoughts = [""] * spec.n, [""] * spec.n
    tally = _Tally(n=spec.n, metrics=service.metrics)
    async for delta in _stream_deltas(service, spec, tally):
        texts[delta.index] += delta.text
        thoughts[delta.index] += delta.reasoning
    choices = [
        build_choice(i, texts[i], tally.finishes[i], thoughts[i] or None) for i in range(spec.n)
    ]
    return completion.build(choices, tally.usage)


async def _stream_chat(
    service: ServicePort, spec: ChatSpec, completion: Completion
) -> AsyncGenerator[bytes]:
    """The chunks of a plain completion.

    A choice's role chunk is sent with its first token, so that a request that fails before it still
    gets an HTTP error.
    """
    started: set[int] = set()
    tally = _Tally(n=spec.n, metrics=service.metrics)
    async with closing(_stream_deltas(service, spec, tally)) as deltas:
        async for delta in deltas:
            index = delta.index
            if index not in started:
                started.add(index)
                yield completion.build_role_chunk(index)
            if delta.reasoning:
                yield completion.build_chunk(build_reasoning(delta.reasoning), index=index)
            if delta.text:
                yield completion.build_chunk({"content": delta.text}, index=index)
            if delta.finish:
                yield completion.build_chunk({}, index=index, finish=delta.finish)
    yield completion.build_end(tally.usage)


async def _stream_deltas(
    service: ServicePort, spec: ChatSpec, tally: _Tally
) -> AsyncGenerator[ChatDelta]:
    """The deltas of all choices. Raises RunFault when a choice never ends."""
    error: BaseException | None = None
    try:
        async with closing(service.chat(spec)) as deltas:
            async for delta in deltas:
                tally.add(delta)
                yield delta
        if len(tally.finishes) < spec.n:
            raise RunFault("the generation ended without a finish reason", "engine_error")
    except BaseException as caught:
        error = caught
        raise
    finally:
        tally.report(error)


# ---------------------------------------------------------------- by search


async def _complete_search(
    request: Request, handle: HandlePort, completion: Completion, body: ChatBody
) -> Response:
    def leave() -> None:
        handle.cancel(DISCONNECTED)  # no effect once the run is over

    headers = {"X-FlashEdge-Run": handle.id}
    if body.stream:
        return EventStream(_stream_search(handle, completion), on_close=leave, headers=headers)
    try:
        result = await run_while_connected(request, handle.result())
    except ClientGone:
        return Response(status_code=499)
    finally:
        leave()
    choice = build_choice(0, result["text"], find_finish_reason(result), result.get("reasoning"))
    whole = completion.build(
        [choice], build_search_usage(result), flashedge=build_search_extra(result)
    )
    return Json(whole, headers=headers)


async def _stream_search(handle: HandlePort, completion: Completion) -> AsyncGenerator[bytes]:
    """Each step and score as reasoning when it happens, then the chosen path as content."""
    yield completion.build_role_chunk(flashedge={"run_id": handle.id})
    async with closing(handle.events()) as events:
        async for seq, event in events:
            about = {"run_id": handle.id, "event": seq}
            match event:
                case StepCompleted(node=node, text=text):
                    reasoning = f"[{node}] {text.strip()}\n"
                    yield completion.build_chunk(
                        build_reasoning(reasoning), flashedge={**about, "node": node}
                    )
                case NodeScored(node=node, score=score):
                    yield completion.build_chunk(
                        build_reasoning(f"[{node}] score {score:.3f}\n"),
                        flashedge={**about, "node": node, "score": score},
                    )
                case RunFinished(result=result):
                    extra = build_search_extra(result)
                    yield completion.build_chunk({"content": result["text"]})
                    yield completion.build_chunk(
                        {}, finish=find_finish_reason(result), flashedge=extra
                    )
                    yield completion.build_end(build_search_usage(result))
                    return
                case RunFailed(error=message, code=code, hint=hint):
                    raise RunFault(message, code, hint)
                case RunCancelled(reason=reason):
                    raise Refusal(499, "cancelled", f"the run was cancelled: {reason}")
                case _:
                    pass
    raise RunFault("the run's log ended without a result", "internal_error")
