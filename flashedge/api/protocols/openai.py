"""OpenAI's /v1/models, llama.cpp's /props, and in /openapi.json the routes that vLLM's handlers
answer (`api.protocols.switch`)."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from flashedge.api.bodies import describe_body
from flashedge.api.failures import Json
from flashedge.api.pairs import ServablePairs
from flashedge.api.protocols.paths import PROTOCOL_ROUTES
from flashedge.api.schemas import ProtocolBody
from flashedge.api.specs import ModelName
from flashedge.models.specs import Pair
from flashedge.runtime.request.strategies import list_strategies


def openai_router(pairs: ServablePairs, max_running: int) -> APIRouter:
    """max_running: most searches of a pair that run at the same time."""
    router = APIRouter()
    since = int(time.time())

    def model_object(name: str, pair: Pair) -> dict[str, Any]:
        tokens = pair.generator.max_model_len
        return {
            "id": name,
            "object": "model",
            "created": since,
            "owned_by": "flashedge",
            "max_model_len": tokens,
            "context_length": tokens,  # of OpenRouter's form
            "meta": {"n_ctx": tokens},  # of llama.cpp's
        }

    @router.get("/models")
    @router.get("/v1/models")
    def models() -> Response:
        """Each pair by itself, and with each strategy. A number of paths may follow: beam-16."""
        # in a thread, since it looks for the files of every pair
        data = []
        for pair in map(pairs.find, pairs.list_names()):
            searches = (f"{pair.name}:{one}" for one in list_strategies(pair.verifier.judges))
            data += [model_object(name, pair) for name in (pair.name, *searches)]
        return Json({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return Json(model_object(name, pairs.find(ModelName.parse(name).pair)))

    @router.get("/props")
    async def props(model: str | None = None) -> Response:
        """A pair in llama.cpp's form, where some clients look for the size of the context."""
        pair = pairs.find(model and ModelName.parse(model).pair)
        settings = {"n_ctx": pair.generator.max_model_len}
        found = {"default_generation_settings": settings, "total_slots": max_running}
        return Json({**found, "model_path": pair.name})

    async def answer() -> Response:
        raise AssertionError("the protocol switch answers before any route")

    body = describe_body(ProtocolBody)
    for path, summary in PROTOCOL_ROUTES.items():
        router.post(path, name=path, summary=summary, openapi_extra=body)(answer)
    return router
