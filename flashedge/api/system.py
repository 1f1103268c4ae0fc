"""The state of the daemon: /health, /metrics and /v1/status."""

import asyncio
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse, Response

import flashedge
from flashedge.api.bodies import inline_schema
from flashedge.api.failures import RETRY_AFTER_S, Json
from flashedge.engine.base import EngineView
from flashedge.errors import FlashEdgeError
from flashedge.profiler.card_watch import CardUser
from flashedge.runtime.metrics import Percentile
from flashedge.runtime.served_pair import PairState
from flashedge.runtime.service import Service
from flashedge.scheduling.programs.estimates import Scheduling
from flashedge.types import POLICY_NAMES

VIEW_TIMEOUT_S = 2.0  # so that a hung engine does not hold up /metrics and /v1/status
SERVING = ("ready", "degraded")
SHOWN = ("state", "detail", "restarts", "attempt", "retry_in_s", "notice", "cards")
"""The fields of an engine that /health shows. /v1/status shows more."""


def system_router(service: Service) -> APIRouter:
    router = APIRouter()
    started = time.monotonic()

    @router.get("/", response_class=PlainTextResponse)
    async def home(request: Request) -> str:
        """For people who open the daemon's address in a browser: what runs here, how to use it."""
        return describe_daemon(service, str(request.base_url).rstrip("/"))

    @router.get("/health")
    async def health() -> Response:
        """200 while requests are served, also if one has to load the engines first. 503 while the
        engines load or after they failed for good."""
        now = service.health()
        body = {
            "status": now.state,
            "detail": now.detail,
            "engines": {
                name: {field: getattr(engine, field) for field in SHOWN}
                for name, engine in (("generator", now.generator), ("verifier", now.verifier))
            },
            "pair": service.default_pair,
            "loaded": list(service.loaded),
            "version": flashedge.__version__,
        }
        if now.state in (*SERVING, "unloaded"):
            return Json(body)
        return Json(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        pairs = service.pairs()
        service.metrics.observe_pairs(pairs, await _read_views(pairs))
        service.metrics.observe_scheduling(pairs, service.scheduling)
        text = service.metrics.render()
        return Response(text, headers={"Content-Type": service.metrics.content_type})

    schema = {"application/json": {"schema": inline_schema(Status)}}

    @router.get("/v1/status", responses={200: {"description": Status.__doc__, "content": schema}})
    async def status() -> Response:
        """Each pair with its engines and runs, and the programs with their places. The engines at
        the top are those of the pair that is being loaded or was used last."""
        now, pairs = service.health(), service.pairs()
        views = await _read_views(pairs)
        described = {name: _describe_pair(state, views[name]) for name, state in pairs.items()}
        return Json(
            {
                "version": flashedge.__version__,
                "state": now.state,
                "detail": now.detail,
                "pair": service.default_pair,
                "loaded": list(service.loaded),
                "pid": os.getpid(),
                "uptime_s": time.monotonic() - started,
                "engines": list(described.values())[-1]["engines"],
                "pairs": described,
                "runs": dict(service.counts),
                "scheduling": dataclasses.asdict(service.scheduling),
                "latency": service.metrics.describe_latency(),
                "kept_runs": service.kept_runs,
                "self_test": now.self_test,
            }
        )

    @router.post("/v1/load", status_code=202)
    async def load() -> Response:
        """Begin to load the default pair. /health shows the progress."""
        service.load()
        return Json({"loaded": list(service.loaded)}, status_code=202)

    @router.post("/v1/unload", status_code=202)
    async def unload() -> Response:
        """Unload the engines as soon as nothing uses them. The next run or request loads them."""
        service.idle.keep_alive(0)
        return Json({"loaded": list(service.loaded)}, status_code=202)

    return router


def _describe_pair(state: PairState, views: Mapping[str, EngineView]) -> dict[str, Any]:
    engines: dict[str, Any] = {}
    health = state.health
    for name, engine in (("generator", health.generator), ("verifier", health.verifier)):
        view = views.get(name)
        seen = None if view is None else {**dataclasses.asdict(view), "cache_hits": view.cache_hits}
        engines[name] = {**dataclasses.asdict(engine), "view": seen}
    return {
        "state": health.state,
        "detail": health.detail,
        "engines": engines,
        "runs": {"queued": state.queued, "running": state.running},
        "card_users": [dataclasses.asdict(user) for user in health.card_users],
    }


async def _read_views(pairs: Mapping[str, PairState]) -> dict[str, Mapping[str, EngineView]]:
    """Read the view of each engine, by pair and role. A pair whose engine is silent has none."""

    async def read(state: PairState) -> Mapping[str, EngineView]:
        if state.health.state not in SERVING:
            return {}
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                return await state.read_views()
        except (FlashEdgeError, TimeoutError):
            return {}

    found = await asyncio.gather(*map(read, pairs.values()))
    return dict(zip(pairs, found, strict=True))


def describe_daemon(service: Service, url: str) -> str:
    """Describe the daemon in plain text, since a pair's name might be markup in HTML."""
    now = service.health()
    detail = f" ({now.detail})" if now.detail else ""
    return f"""\
FlashEdge {flashedge.__version__} is running. Pair {service.default_pair}: {now.state}{detail}

OpenAI's clients      base_url {url}/v1, model {service.default_pair}
Anthropic's clients   ANTHROPIC_BASE_URL={url}, model {service.default_pair}
Searches              model {service.default_pair}:beam-16, or POST {url}/v1/solve
Scores                POST {url}/v1/score
What can be named     GET {url}/v1/models
State                 GET {url}/v1/status, /health, /metrics
In a terminal         flashedge tui
"""


class Reply(BaseModel):
    """Attribute docstrings become descriptions in /openapi.json."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Latency(Reply):
    """Percentiles in seconds, null without requests: half of the requests took at most p50."""

    requests: int
    first_token_s: dict[Percentile, float] | None
    token_s: dict[Percentile, float] | None


class PairStatus(Reply):
    state: str
    detail: str | None
    engines: dict[str, Any]
    runs: dict[str, int]
    card_users: list[CardUser]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingStatus(Scheduling):
    policy: Annotated[str, Field(json_schema_extra={"enum": list(POLICY_NAMES)})]


class Status(Reply):
    """The daemon's state and load."""

    state: str
    pairs: dict[str, PairStatus]
    """The loaded pairs, or the default one: their engines, and how many runs wait and run."""
    scheduling: SchedulingStatus
    """How programs are ordered, and how they stand, the first to go first."""
    latency: dict[str, Latency]
    """How fast the last chats and runs that finished were: until the first token, and for each
    token after it (of a run: of its whole tree)."""
