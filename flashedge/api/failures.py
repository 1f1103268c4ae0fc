"""Errors as the OpenAI API words them: `{"error": {message, type, param, code}}`, always."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from flashedge.errors import FlashEdgeError, QueueFull, RequestError

RETRY_AFTER_S = 2


class Refused(RequestError):
    """A refusal of the HTTP layer itself, with its own status and code."""

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


class RunFault(FlashEdgeError):
    """A run's end that an event told, as an error with the event's code."""

    def __init__(self, message: str, code: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


def dumps(value: Any) -> bytes:
    """JSON that every parser takes: ASCII only, and null for a number that JSON does not have.

    (ASCII also because U+2028 in an SSE line ends that line for some clients.)
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


class Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return dumps(content)


def error_object(error: FlashEdgeError) -> dict[str, Any]:
    return _object(error.line, error.http_status, error.param, error.code)


def error_response(error: FlashEdgeError) -> Response:
    headers = dict(getattr(error, "headers", {}))
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif error.http_status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Json(error_object(error), status_code=error.http_status, headers=headers)


async def on_flashedge_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FlashEdgeError)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such path, method not allowed."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    message, code = {
        404: (f"there is no {asked}; see /openapi.json for what there is", "not_found"),
        405: (f"{request.url.path} does not take {request.method}", "method_not_allowed"),
    }.get(error.status_code, (str(error.detail), "http_error"))
    body = _object(message, error.status_code, None, code)
    return Json(body, status_code=error.status_code, headers=error.headers)


async def on_bad_parameter(request: Request, error: Exception) -> Response:
    """A query or path parameter of the wrong type."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return Json(_object(f"{name}: {first['msg']}", 400, name, "invalid_request"), status_code=400)


async def on_defect(request: Request, error: Exception) -> Response:
    """Anything else is our bug; the server logs it, the client learns no more than that."""
    body = _object("a defect in FlashEdge; see `flashedge logs`", 500, None, "internal_error")
    return Json(body, status_code=500)


def _object(message: str, status: int, param: str | None, code: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status in (401, 403):
        kind = "authentication_error" if status == 401 else "permission_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
