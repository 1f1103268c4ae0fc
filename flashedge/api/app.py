"""The FastAPI application over a Service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import flashedge
from flashedge.api.contract import Defaults, ServicePort
from flashedge.api.failures import (
    ERROR_RESPONSES,
    handle_bad_parameter,
    handle_defect,
    handle_flashedge_error,
    handle_http_exception,
)
from flashedge.api.guard import Guard
from flashedge.api.openai import openai_router
from flashedge.api.protocols import ProtocolSwitch
from flashedge.api.runs import runs_router
from flashedge.api.system import system_router
from flashedge.config import Config, check_exposure
from flashedge.errors import FlashEdgeError
from flashedge.models.registry import find_pair
from flashedge.models.specs import Pair
from flashedge.runtime.request.strategies import find_usual_strategy, list_strategies

log = logging.getLogger(__name__)


def create_app(service: ServicePort, config: Config, pair: Pair | None = None) -> FastAPI:
    """The application. `pair` provides the defaults of requests; None looks up `service.pair`.

    The service starts and stops with the server. While the engines load, routes that need them
    answer 503. Raises ConfigError when other machines could reach it without a key.
    """
    check_exposure(config)
    served = pair or find_pair(service.pair, config)
    defaults = Defaults(
        sampling=served.sampling,
        max_model_len=served.generator.max_model_len,
        strategies=list_strategies(served.verifier.judges),
        strategy=find_usual_strategy(served.verifier.judges, served.judge),
        max_step_tokens=served.max_step_tokens,
        max_path_tokens=served.max_path_tokens,
        step_rule=served.step_rule,
        step_entropy=served.step_entropy,
        min_step_tokens=served.min_step_tokens,
        judge=served.judge,
        options=served.options,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start_service(service))
        try:
            yield
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await service.stop()

    app = FastAPI(
        lifespan=lifespan,
        title="FlashEdge",
        version=flashedge.__version__,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        responses=ERROR_RESPONSES,
    )
    app.state.service = service
    app.add_exception_handler(FlashEdgeError, handle_flashedge_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(RequestValidationError, handle_bad_parameter)
    app.add_exception_handler(Exception, handle_defect)
    app.add_middleware(ProtocolSwitch, service=service, defaults=defaults)
    app.add_middleware(  # the last one added is the first that a request meets
        Guard,
        max_bytes=config.max_request_bytes,
        api_key=config.api_key,
        local_only=config.is_loopback,
        host=config.host,
    )
    app.include_router(system_router(service))
    app.include_router(openai_router(service, defaults))
    app.include_router(runs_router(service, defaults))
    return app


async def _start_service(service: ServicePort) -> None:
    """Start the engines. After a failure the daemon stays up, so that /health can report it."""
    try:
        await service.start()
    except FlashEdgeError as error:
        log.error("the engines did not start: %s", error.line)
    except Exception:
        log.exception("the engines did not start")
