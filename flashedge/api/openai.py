"""OpenAI's API: /v1/models, and /v1/chat/completions by a search.

Chat completions that name no search never come here: see `api.protocols`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
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
    find_finish_reason,
)
from flashedge.api.contract import Defaults, HandlePort, ServicePort
from flashedge.api.failures import Json, Refusal, RunFault
from flashedge.api.schemas import ChatBody
from flashedge.api.specs import (
    ModelName,
    build_chat_search_spec,
    choose_search,
    refuse_unsupported,
)
from flashedge.api.sse import ClientGone, EventStream, closing, run_while_connected
from flashedge.events import NodeScored, RunCancelled, RunFailed, RunFinished, StepCompleted

DISCONNECTED = "the client disconnected"


def openai_router(service: ServicePort, defaults: Defaults) -> APIRouter:
    router = APIRouter(prefix="/v1")
    since = int(time.time())

    def model_object(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": since,
            "owned_by": "flashedge",
            "max_model_len": defaults.max_model_len,
        }

    @router.get("/models")
    async def models() -> Response:
        """The pair by itself, and with each strategy. A number of paths may follow: beam-16."""
        names = [service.pair, *(f"{service.pair}:{name}" for name in defaults.strategies)]
        return Json({"object": "list", "data": [model_object(name) for name in names]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        ModelName.parse(name, service.pair)
        return Json(model_object(name))

    @router.post("/chat/completions", openapi_extra=describe_body(ChatBody))
    async def complete(request: Request) -> Response:
        """A chat completion by a search. It is cancelled when the client disconnects."""
        body = await read_body(request, ChatBody)
        refuse_unsupported(body)
        model = ModelName.parse(body.model, service.pair)
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        completion = Completion(model=body.model, include_usage=wants_usage)
        search = choose_search(body, model)
        spec = build_chat_search_spec(body, model, search, defaults)
        return await _complete_search(request, service.submit(spec), completion, body)

    return router


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
