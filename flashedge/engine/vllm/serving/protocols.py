"""Serves vLLM's HTTP routes by the generator's engine: chat completions, completions, responses,
Anthropic's messages, tokenization.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import JSONResponse, Response
from vllm.entrypoints.generate.api_router import register_generate_api_routers
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.entrypoints.serve.tokenize.api_router import router as tokenize_router
from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMClientError
from vllm.utils.argparse_utils import FlexibleArgumentParser

from flashedge.engine.http_requests import PlainRequests, get_request
from flashedge.engine.vllm.process.restarts import EngineProcess
from flashedge.engine.vllm.serving.conversation import (
    adapt_handlers,
    join_twins,
    prepare_conversations,
)
from flashedge.engine.vllm.serving.search_client import SearchClient
from flashedge.engine.vllm.serving.tagged_client import TaggedClient
from flashedge.models.specs import Pair

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


BODY_MODULE = "fastapi.dependencies.utils"
"""The module that parses a request's body before its route is called."""
REFUSALS = (VLLMClientError, GracefulHTTPError, RetryableRequestError)
"""Exceptions that vLLM's handlers answer with 4xx, 503 or 507."""


class VllmProtocols:
    """An ASGI application. Requests must be tagged (`engine.http_requests`).

    Requests for a search have handlers of their own, whose engine client is a `SearchClient`.
    """

    def __init__(self, process: EngineProcess, pair: Pair, plain: PlainRequests) -> None:
        self._process = process
        self._pair = pair
        self._plain = plain
        self._plain_app, self._search_app = _build_generator_app(), _build_generator_app()
        shorten_refusals()
        self._serving: AsyncLLM | None = None
        """The engine for which the handlers were made."""
        self._preparing = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request. Raises EngineDead, before anything is sent, when the engine is down."""
        await self.prepare()
        app = self._plain_app if get_request().searcher is None else self._search_app
        await app(scope, receive, send)

    async def prepare(self) -> None:
        """Make the handlers for the engine process that serves now. Raises EngineDead."""
        async with self._preparing:
            llm = self._process.get_llm()
            if llm is self._serving:
                return
            for app, kind in ((self._plain_app, TaggedClient), (self._search_app, SearchClient)):
                given = self._list_args(llm, searches=kind is SearchClient)
                args = build_args(self._process, self._pair.name, **given)
                client: Any = kind(llm, self._process, self._plain, self._pair.name)
                await init_app_state(client, app.state, args, ("generate",))
                prepare_conversations(app.state)
                join_twins(app.state)
            adapt_handlers(self._search_app.state)
            self._serving = llm

    def _list_args(self, llm: AsyncLLM, *, searches: bool) -> dict[str, Any]:
        """List the arguments of the handlers of searches, or of plain requests."""
        entry, given = self._pair.generator, dict[str, Any]()
        if entry.tool_parser is not None:
            given["enable_auto_tool_choice"] = True
            given["tool_call_parser"] = entry.tool_parser
            given["tool_strict_level"] = "parameter"  # else arguments may be any JSON
            given["exclude_tools_when_tool_choice_none"] = True  # else a call may stand in the text
        if entry.chat_template_kwargs:
            given["default_chat_template_kwargs"] = json.dumps(dict(entry.chat_template_kwargs))
        template = getattr(llm.renderer.tokenizer, "chat_template", None)
        prompt = self._pair.system_prompt if searches else None
        if prompt is not None and isinstance(template, str):
            # It asks for an answer that can be compared. A conversation that begins with
            # instructions keeps its own, and one with tools is an agent's.
            text = json.dumps(prompt, ensure_ascii=False)
            message = "[{'role': 'system', 'content': " + text + "}]"
            has_none = "not tools and messages[0].role not in ('system', 'developer')"
            begin = f"{{% if {has_none} %}}{{% set messages = {message} + messages %}}{{% endif %}}"
            given["chat_template"] = begin + template
        return given


def _build_generator_app() -> FastAPI:
    app = build_app(tokenize_router)
    register_generate_api_routers(app)
    return app


def build_app(router: APIRouter) -> FastAPI:
    """Build an application that has these routes of vLLM and answers errors as vLLM does."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.include_router(router)
    init_exception_handler(app)
    refuse_unreadable(app)
    return app


def build_args(process: EngineProcess, name: str, **more: Any) -> Namespace:
    """Build the arguments of `vllm serve`. name: the served model's. more: further arguments."""
    given: dict[str, Any] = {
        "model": str(process.options.model),
        "served_model_name": name,
        "enable_prompt_tokens_details": True,
        **more,
    }
    words: list[str] = []
    for option, value in given.items():
        flag = f"--{option.replace('_', '-')}"
        words += [flag] if value is True else [flag, value]
    args: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    args.structured_outputs_config.reasoning_parser = process.options.reasoning_parser or ""
    return args


class RefusalFilter(logging.Filter):
    """Replaces the traceback of a refused request in vLLM's log by the reason. vLLM's handlers log
    one even for a full queue or a long prompt. A bug keeps its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        reason: BaseException | None = error if isinstance(error, REFUSALS) else None
        with suppress(LookupError):  # outside any request
            reason = reason or get_request().failure
        if reason is not None:
            said = record.getMessage()
            text = said if str(reason) in said else f"{said} {reason}"
            record.msg, record.args = " ".join(text.split()), ()
            record.exc_info = record.exc_text = None
        return True


def shorten_refusals() -> None:
    """Add a RefusalFilter to vLLM's log in this process. A second call does nothing."""
    for handler in logging.getLogger("vllm").handlers:
        if not any(isinstance(each, RefusalFilter) for each in handler.filters):
            handler.addFilter(RefusalFilter())


def refuse_unreadable(app: FastAPI) -> None:
    """Let an application of vLLM's routes answer 400 to a body that it can't read.

    Some of vLLM's checks look into a body before its types are checked. A tool without a name, or a
    number in place of an object, then raises KeyError or AttributeError, which vLLM answers with
    500. Whatever is raised while a body is parsed is the client's fault.
    """
    for kind in (LookupError, AttributeError, RecursionError):
        app.add_exception_handler(kind, answer_unreadable)


async def answer_unreadable(request: Request, error: Exception) -> Response:
    """Answer 400 to an error from parsing the body. Raises any other error again: it is a bug."""
    frames = traceback.walk_tb(error.__traceback__)
    if not any(frame.f_globals.get("__name__") == BODY_MODULE for frame, _ in frames):
        raise error
    what = f"{type(error).__name__}: {error}"
    message = f"a part of the request is missing or of a wrong type ({what})"
    told = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    return JSONResponse({"error": told}, status_code=400)
