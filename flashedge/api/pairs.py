"""The pairs that a request may name, and the routes that list them."""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from flashedge.api.bodies import describe_body
from flashedge.api.failures import Json
from flashedge.api.paths import PROTOCOL_ROUTES
from flashedge.api.schemas import ProtocolBody
from flashedge.api.specs import ModelName
from flashedge.config import Config
from flashedge.errors import NotFound
from flashedge.models.folders import is_local
from flashedge.models.registry import load_pairs
from flashedge.models.specs import Pair
from flashedge.runtime.request.strategies import list_strategies


class ServablePairs:
    """The pairs whose files are on this machine."""

    def __init__(
        self, config: Config, default: str, pairs: Mapping[str, Pair] | None = None
    ) -> None:
        """default: the default pair's name. pairs: by name; None means those of models.toml."""
        self.deterministic = config.deterministic_searches
        """The default for searches that do not set it."""
        self.max_running = config.max_running
        """At most so many searches of a pair run at the same time."""
        self._config, self._default, self._pairs = config, default, pairs

    def list_names(self) -> list[str]:
        """The default pair, then the others by name."""
        here = [name for name, pair in self._load().items() if self._is_here(pair)]
        return sorted(here, key=lambda name: (name != self._default, name))

    def find(self, name: str | None = None, param: str = "model") -> Pair:
        """The pair of a name, or the default one. param: the field of the request that names it.

        Raises NotFound for a pair that is unknown or not on this machine.
        """
        name = self._default if name is None else name
        pair = self._load().get(name)
        if pair is None:
            known = ", ".join(map(repr, self.list_names()))
            raise NotFound(
                f"there is no model {name!r}",
                hint=f"this daemon serves {known} and, as a search, {self._default}:beam-16",
                param=param,
            )
        if not self._is_here(pair):
            raise NotFound(
                f"the files of the pair {name!r} are not on this machine",
                hint=f"flashedge models pull {name}",
                param=param,
            )
        return pair

    def _load(self) -> Mapping[str, Pair]:
        return load_pairs(self._config) if self._pairs is None else self._pairs

    def _is_here(self, pair: Pair) -> bool:
        return self._pairs is not None or is_local(pair, self._config)


def models_router(pairs: ServablePairs) -> APIRouter:
    """OpenAI's /v1/models and llama.cpp's /props. The routes that vLLM's handlers answer
    (`api.protocols.switch`) are here only for /openapi.json."""
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
            "context_length": tokens,  # as OpenRouter names it
            "meta": {"n_ctx": tokens},  # as llama.cpp does
        }

    @router.get("/models")
    @router.get("/v1/models")
    def models() -> Response:
        """Each pair alone, and with each strategy. A number of paths may be added: beam-16."""
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
        """A pair in llama.cpp's form, from which some clients take the size of the context."""
        pair = pairs.find(model and ModelName.parse(model).pair)
        settings = {"n_ctx": pair.generator.max_model_len}
        found = {"default_generation_settings": settings, "total_slots": pairs.max_running}
        return Json(found | {"model_path": pair.name})

    async def answer() -> Response:
        raise AssertionError("the protocol switch answers before any route")

    body = describe_body(ProtocolBody)
    for path, summary in PROTOCOL_ROUTES.items():
        router.post(path, name=path, summary=summary, openapi_extra=body)(answer)
    return router
