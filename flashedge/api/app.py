"""The FastAPI application over a Service."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import flashedge
from flashedge.api import failures
from flashedge.api.failures import ErrorReply
from flashedge.api.guard import Guard
from flashedge.api.pairs import ServablePairs, models_router
from flashedge.api.protocols.scores import scores_router
from flashedge.api.protocols.switch import ProtocolSwitch
from flashedge.api.runs import runs_router
from flashedge.api.sse import ClientGone
from flashedge.api.system import system_router
from flashedge.config import Config, check_exposure
from flashedge.errors import FlashEdgeError
from flashedge.models.specs import Pair
from flashedge.runtime.service import Service

log = logging.getLogger(__name__)


def create_app(
    service: Service, config: Config, pairs: Mapping[str, Pair] | None = None
) -> FastAPI:
    """Build the application. The service starts and stops with its server.

    pairs: those that requests may name; None means those of models.toml. Raises ConfigError when
    other machines could reach the server without a key.
    """
    check_exposure(config)
    servable = ServablePairs(config, service.default_pair, pairs)

    async def start() -> None:
        """Start the engines. After a failure the daemon stays up, so that /health can report it."""
        try:
            await service.start()
        except FlashEdgeError as error:
            log.error("the engines did not start: %s", error.line)
        except Exception:
            log.exception("the engines did not start")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(start())
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
        responses={"default": {"description": ErrorReply.__doc__, "model": ErrorReply}},
    )
    app.state.service = service
    app.add_exception_handler(FlashEdgeError, failures.handle_error)
    # nobody reads this answer; 499 is nginx's status for a client that has left
    app.add_exception_handler(ClientGone, lambda request, error: Response(status_code=499))
    app.add_exception_handler(HTTPException, failures.handle_http_exception)
    app.add_exception_handler(RequestValidationError, failures.handle_bad_parameter)
    app.add_exception_handler(Exception, failures.handle_error)
    app.add_middleware(
        ProtocolSwitch, service=service, pairs=servable, steady=config.features.steady_prompts
    )
    app.add_middleware(Guard, config=config)  # the last one added is the first that a request meets
    app.include_router(system_router(service))
    app.include_router(models_router(servable))
    app.include_router(runs_router(service, servable))
    app.include_router(scores_router(service, servable))
    return app
