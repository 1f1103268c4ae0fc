"""Errors in the form of the OpenAI API: `{"error": {message, type, param, code}}`."""

import json
import math
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from flashedge.errors import FlashEdgeError, QueueFull, RequestError

RETRY_AFTER_S = 2
"""When a client may retry after a 503, unless the queue is full. Chosen by hand: small
pairs load in seconds, so with 20 s a client would wait for a pair that is ready."""


class Refusal(RequestError):
    """A request that the HTTP layer itself refuses, with its status and code."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, param=param)
        self.http_status = status
        self.code = code
        self.headers = dict(headers or {})


class ErrorDetail(BaseModel):
    """What an error says. In Anthropic's protocol it has neither param nor code."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """An error. The message says what is wrong and what to do."""

    error: ErrorDetail


def dump_json(value: Any) -> bytes:
    """JSON that every parser accepts: ASCII only, with null for NaN and infinity.

    Some clients end an SSE line at U+2028, which ASCII output escapes.
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_replace_nonfinite(value), separators=(",", ":")).encode()


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: _replace_nonfinite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(v) for v in value]
    return value


BUG = FlashEdgeError("a bug in FlashEdge", hint="`flashedge logs` shows it")


class Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return dump_json(content)


def build_error(error: FlashEdgeError) -> dict[str, Any]:
    return build_error_object(error.line, error.http_status, error.param, error.code)


def build_error_response(error: FlashEdgeError) -> Response:
    headers = dict(error.headers) if isinstance(error, Refusal) else {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif error.http_status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Json(build_error(error), status_code=error.http_status, headers=headers)


async def handle_error(request: Request, error: Exception) -> Response:
    """Answer with FlashEdge's own error. Any other is a bug, which only the log describes."""
    return build_error_response(error if isinstance(error, FlashEdgeError) else BUG)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer errors of the router: an unknown path, or a method that is not allowed."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        error.headers = {**(error.headers or {}), "Allow": ", ".join(list_methods(request))}
    route = f"{request.method} {request.url.path}"
    message, code = {
        404: (f"there is no {route}; /openapi.json lists all routes", "not_found"),
        405: (f"{request.url.path} does not accept {request.method}", "method_not_allowed"),
    }.get(error.status_code, (str(error.detail), "http_error"))
    body = build_error_object(message, error.status_code, None, code)
    return Json(body, status_code=error.status_code, headers=error.headers)


def list_methods(request: Request) -> list[str]:
    """The methods of all routes that a request's path matches, and HEAD with GET."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found.update(getattr(route, "methods", None) or ())
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def handle_bad_parameter(request: Request, error: Exception) -> Response:
    """Answer a query or path parameter with a wrong value."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return build_error_response(RequestError(f"{name}: {reword(first['msg'])}", param=name))


def reword(message: str) -> str:
    """Write a message of pydantic in our words."""
    return message.replace("Input should be ", "must be ", 1)


def build_error_object(message: str, status: int, param: str | None, code: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status in (401, 403):
        kind = "authentication_error" if status == 401 else "permission_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
