"""OpenAI's /v1/models, llama.cpp's /props, and in /openapi.json the routes that vLLM's handlers
answer (`api.protocols.switch`)."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from flashedge.api.bodies import describe_body
from flashedge.api.failures import Json
from flashedge.api.pairs import Defaults, ServablePairs
from flashedge.api.protocols.paths import PROTOCOL_ROUTES
from flashedge.api.schemas import ProtocolBody
from flashedge.api.specs import ModelName


def openai_router(pairs: ServablePairs, max_running: int) -> APIRouter:
    """max_running: most searches of a pair that run at the same time."""
    router = APIRouter()
    since = int(time.time())

    def model_object(name: str, defaults: Defaults) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": since,
            "owned_by": "flashedge",
            "max_model_len": defaults.max_model_len,
            "context_length": defaults.max_model_len,  # of OpenRouter's form
            "meta": {"n_ctx": defaults.max_model_len},  # of llama.cpp's
        }

    @router.get("/models")
    @router.get("/v1/models")
    def models() -> Response:
        """Each pair by itself, and with each strategy. A number of paths may follow: beam-16.

        In a thread: it looks for the files of every pair.
        """
        data = []
        for pair in pairs.list_names():
            defaults = pairs.find_defaults(pair)
            names = [pair, *(f"{pair}:{strategy}" for strategy in defaults.strategies)]
            data += [model_object(name, defaults) for name in names]
        return Json({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return Json(model_object(name, pairs.find_defaults(ModelName.parse(name).pair)))

    @router.get("/props")
    async def props(model: str | None = None) -> Response:
        """A pair in llama.cpp's form, where some clients look for the size of the context."""
        defaults = pairs.find_defaults(model and ModelName.parse(model).pair)
        return Json(
            {
                "default_generation_settings": {"n_ctx": defaults.max_model_len},
                "total_slots": max_running,
                "model_path": defaults.pair,
            }
        )

    async def answer() -> Response:
        raise AssertionError("the protocol switch answers before any route")

    for path, summary in PROTOCOL_ROUTES.items():
        router.add_api_route(
            path,
            answer,
            methods=["POST"],
            name=path,
            summary=summary,
            openapi_extra=describe_body(ProtocolBody),
        )
    return router
