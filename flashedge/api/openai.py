"""OpenAI's /v1/models, and in /openapi.json the routes that vLLM's handlers answer
(`api.protocols`)."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from flashedge.api.bodies import describe_body
from flashedge.api.contract import Defaults, ServicePort
from flashedge.api.failures import Json
from flashedge.api.paths import PROTOCOL_ROUTES
from flashedge.api.schemas import ProtocolBody
from flashedge.api.specs import ModelName


def openai_router(service: ServicePort, defaults: Defaults) -> APIRouter:
    router = APIRouter()
    since = int(time.time())

    def model_object(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": since,
            "owned_by": "flashedge",
            "max_model_len": defaults.max_model_len,
        }

    @router.get("/v1/models")
    async def models() -> Response:
        """The pair by itself, and with each strategy. A number of paths may follow: beam-16."""
        names = [service.pair, *(f"{service.pair}:{name}" for name in defaults.strategies)]
        return Json({"object": "list", "data": [model_object(name) for name in names]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        ModelName.parse(name, service.pair)
        return Json(model_object(name))

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
