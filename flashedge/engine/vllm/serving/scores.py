"""Serves vLLM's route of scores by the verifier's engine: how well pairs of texts belong together.

vLLM scores pairs by a classifier with one label, or by embeddings. For our searches such a
classifier gives its logit at every token (the task `token_classify`). vLLM's handler uses the
classifier's activated logit at the last token (the task `classify`), as in `vllm serve`.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm import PoolingParams
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.pooling.scoring.api_router import router

from flashedge.engine.http_requests import (
    PlainRequest,
    PlainRequests,
    end_with_request,
    get_request,
)
from flashedge.engine.vllm.inside.keys import ARGS_KEY, PROGRAM
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.engine.vllm.serving.protocols import build_app, build_args
from flashedge.engine.vllm.serving.tagged_client import TaggedClient, fail_request
from flashedge.errors import FlashEdgeError

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

CLASSIFY = "classify"


class ScoringClient(TaggedClient):
    """Stands for a verifier's AsyncLLM, as if that had been started for the task `classify`."""

    def __init__(
        self, llm: AsyncLLM, process: EngineProcess, plain: PlainRequests, pair: str
    ) -> None:
        super().__init__(llm, process, plain, pair)
        self.model_config: Any = copy(llm.model_config)
        pooler: Any = self.model_config.pooler_config
        self.model_config.pooler_config = replace(pooler, task=CLASSIFY, use_activation=None)
        self.vllm_config: Any = copy(llm.vllm_config)
        self.vllm_config.model_config = self.model_config

    def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[PoolingRequestOutput]:
        """Tag a request and stream its output. The stream raises what `fail_request` returns."""
        tags = get_request().tags
        program = tags.program or request_id
        params = pooling_params.clone()
        params.extra_kwargs = {**(params.extra_kwargs or {}), ARGS_KEY: {PROGRAM: program}}
        ask = PlainRequest(
            program=program,
            pair=self._pair,
            client=tags.client,
            priority=tags.priority,
            max_tokens=1,
            is_score=True,
        )
        options["priority"] = tags.priority
        return end_with_request(self._score(prompt, params, request_id, ask, options))

    async def _score(
        self,
        prompt: Any,
        params: PoolingParams,
        request_id: str,
        ask: PlainRequest,
        options: dict[str, Any],
    ) -> AsyncGenerator[PoolingRequestOutput]:
        try:
            with (
                self._plain.open(ask, lambda: self._llm.abort(request_id)),
                self._process.open_request(request_id),
            ):
                async with aclosing(
                    self._llm.encode(prompt, params, request_id, **options)
                ) as outputs:
                    async for output in outputs:
                        yield output
        except FlashEdgeError as error:
            raise fail_request(error) from error


class VllmScores:
    """An ASGI application. Requests must be tagged (`engine.http_requests`)."""

    def __init__(self, process: EngineProcess, pair: str, plain: PlainRequests) -> None:
        self._process = process
        self._pair = pair
        self._plain = plain
        self._app = build_app(router)
        self._serving: AsyncLLM | None = None
        """The engine for which the handler was made."""
        self._preparing = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request. Raises EngineDead, before anything is sent, when the engine is down."""
        async with self._preparing:
            llm = self._process.get_llm()
            if llm is not self._serving:
                client: Any = ScoringClient(llm, self._process, self._plain, self._pair)
                args = build_args(self._process, self._pair)
                await init_app_state(client, self._app.state, args, (CLASSIFY,))
                self._serving = llm
        await self._app(scope, receive, send)
