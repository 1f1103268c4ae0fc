"""OpenAI's API: /v1/models and /v1/chat/completions, plain or by search."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from flashedge.api.bodies import body_of, openapi_of
from flashedge.api.completions import (
    Completion,
    choice_of,
    search_extra,
    search_finish,
    search_usage,
    usage_of,
)
from flashedge.api.contract import Defaults, HandlePort, ServicePort
from flashedge.api.failures import Json, Refused, RunFault
from flashedge.api.schemas import ChatBody
from flashedge.api.specs import (
    ModelName,
    chat_search_spec,
    chat_spec,
    refuse_unsupported,
    search_of,
)
from flashedge.api.sse import ClientGone, EventStream, owned, unless_gone
from flashedge.events import NodeScored, RunCancelled, RunFailed, RunFinished, StepCompleted
from flashedge.runtime.chat import ChatSpec
from flashedge.runtime.metrics import Metrics

LEFT = "the client disconnected"


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

    @router.post("/chat/completions", openapi_extra=openapi_of(ChatBody))
    async def complete(request: Request) -> Response:
        """A chat completion. The client's leaving cancels it."""
        body = await body_of(request, ChatBody)
        refuse_unsupported(body)
        model = ModelName.parse(body.model, service.pair)
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        completion = Completion(model=body.model, include_usage=wants_usage)
        search = search_of(body, model)
        if search is None:
            spec = chat_spec(body, defaults)
            if body.stream:
                return EventStream(_chat_chunks(service, spec, completion))
            try:
                return Json(await unless_gone(request, _chat(service, spec, completion)))
            except ClientGone:
                return Response(status_code=499)
        return await _search(
            request,
            service.submit(chat_search_spec(body, model, search, defaults)),
            completion,
            body,
        )

    return router


# ---------------------------------------------------------------- plain


@dataclass(slots=True)
class _Tally:
    """What a plain completion cost, told to the metrics once, however it ends."""

    n: int
    metrics: Metrics
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finishes: dict[int, str] = field(default_factory=dict)
    first_token_s: float | None = None
    began: float = field(default_factory=time.monotonic)

    def take(self, prompt_tokens: int, new_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens += new_tokens
        if new_tokens and self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.began

    def tell(self, error: BaseException | None) -> None:
        finish = "error" if isinstance(error, Exception) else "cancelled"
        if len(self.finishes) == self.n:
            finish = "length" if "length" in self.finishes.values() else "stop"
        self.metrics.observe_chat(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            first_token_s=self.first_token_s,
            total_s=time.monotonic() - self.began,
            finish=finish,
        )

    @property
    def usage(self) -> dict[str, Any]:
        return usage_of(self.prompt_tokens, self.completion_tokens)


async def _chat(service: ServicePort, spec: ChatSpec, completion: Completion) -> dict[str, Any]:
    texts: dict[int, list[str]] = {i: [] for i in range(spec.n)}
    tally = _Tally(n=spec.n, metrics=service.metrics)
    async for index, text, _ in _deltas(service, spec, tally):
        texts[index].append(text)
    choices = [choice_of(i, "".join(t), tally.finishes[i]) for i, t in texts.items()]
    return completion.whole(choices, tally.usage)


async def _chat_chunks(
    service: ServicePort, spec: ChatSpec, completion: Completion
) -> AsyncGenerator[bytes]:
    """A choice's role chunk goes out with its first token, so that a request that can't be
    served is still answered with an HTTP error."""
    begun: set[int] = set()
    tally = _Tally(n=spec.n, metrics=service.metrics)
    async with owned(_deltas(service, spec, tally)) as deltas:
        async for index, text, finish in deltas:
            if index not in begun:
                begun.add(index)
                yield completion.role_chunk(index)
            if text:
                yield completion.chunk({"content": text}, index=index)
            if finish:
                yield completion.chunk({}, index=index, finish=finish)
    yield completion.end(tally.usage)


async def _deltas(
    service: ServicePort, spec: ChatSpec, tally: _Tally
) -> AsyncGenerator[tuple[int, str, str | None]]:
    """(choice, text, finish). Raises RunFault when a choice never ends."""
    error: BaseException | None = None
    try:
        async with owned(service.chat(spec)) as deltas:
            async for delta in deltas:
                tally.take(delta.prompt_tokens, len(delta.token_ids))
                if delta.finish:
                    tally.finishes[delta.index] = delta.finish
                yield delta.index, delta.text, delta.finish
        if len(tally.finishes) < spec.n:
            raise RunFault("the generation ended without a finish", "engine_error")
    except BaseException as caught:
        error = caught
        raise
    finally:
        tally.tell(error)


# ---------------------------------------------------------------- by search


async def _search(
    request: Request, handle: HandlePort, completion: Completion, body: ChatBody
) -> Response:
    def leave() -> None:
        handle.cancel(LEFT)  # does nothing to a run that is over

    headers = {"X-FlashEdge-Run": handle.id}
    if body.stream:
        return EventStream(_search_chunks(handle, completion), on_close=leave, headers=headers)
    try:
        result = await unless_gone(request, handle.result())
    except ClientGone:
        return Response(status_code=499)
    finally:
        leave()
    choice = choice_of(0, result["text"], search_finish(result))
    whole = completion.whole([choice], search_usage(result), flashedge=search_extra(result))
    return Json(whole, headers=headers)


async def _search_chunks(handle: HandlePort, completion: Completion) -> AsyncGenerator[bytes]:
    """Every step and score as reasoning when it happens; then the chosen path as content."""
    yield completion.role_chunk(flashedge={"run_id": handle.id})
    async with owned(handle.events()) as events:
        async for seq, event in events:
            about = {"run_id": handle.id, "event": seq}
            match event:
                case StepCompleted(node=node, text=text):
                    said = f"[{node}] {text.strip()}\n"
                    yield completion.chunk(
                        {"reasoning_content": said}, flashedge={**about, "node": node}
                    )
                case NodeScored(node=node, score=score):
                    yield completion.chunk(
                        {"reasoning_content": f"[{node}] score {score:.3f}\n"},
                        flashedge={**about, "node": node, "score": score},
                    )
                case RunFinished(result=result):
                    extra = search_extra(result)
                    yield completion.chunk({"content": result["text"]})
                    yield completion.chunk({}, finish=search_finish(result), flashedge=extra)
                    yield completion.end(search_usage(result))
                    return
                case RunFailed(error=message, code=code, hint=hint):
                    raise RunFault(message, code, hint)
                case RunCancelled(reason=reason):
                    raise Refused(499, "cancelled", f"the run was cancelled: {reason}")
                case _:
                    pass
    raise RunFault("the run's log ended without a result", "internal_error")
