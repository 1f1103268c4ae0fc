"""What the daemon sends, as our events and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from flashedge import errors, events
from flashedge.client.sse import Frame
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError
from flashedge.events import Event

_BY_CODE = {kind.code: kind for kind in errors.list_error_types()}


def translate_error(error: httpx.HTTPError, base_url: str) -> DaemonError:
    """The only place where httpx's exceptions become ours."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return DaemonError(f"no daemon answers at {base_url}", hint="flashedge up")
    if isinstance(error, httpx.TimeoutException):
        return DaemonError(f"the daemon at {base_url} does not answer", hint="flashedge ps")
    return DaemonError(f"lost the daemon at {base_url} ({type(error).__name__})")


def parse_error_response(response: httpx.Response) -> FlashEdgeError:
    """The error in a response with an error status."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    retry_after = response.headers.get("retry-after", "")
    return parse_error(
        body if isinstance(body, dict) else {},
        response.status_code,
        retry_after_s=float(retry_after) if retry_after.isdigit() else 1.0,
    )


def parse_error(body: Mapping[str, Any], status: int, retry_after_s: float = 1.0) -> FlashEdgeError:
    """The error in `{"error": {message, code, param, hint?}}`, or else one made from `status`."""
    fields = body.get("error")
    fields = fields if isinstance(fields, dict) else {}
    message = str(fields.get("message") or f"the daemon answered HTTP {status}")
    hint, param = fields.get("hint"), fields.get("param")
    if status in (401, 403):
        return RequestError(message, hint=hint or "set FLASHEDGE_API_KEY to the daemon's key")
    kind = _BY_CODE.get(str(fields.get("code")))
    if kind is QueueFull:
        return QueueFull(message, retry_after_s=retry_after_s, hint=hint)
    if kind is None:
        kind = RequestError if 400 <= status < 500 else DaemonError
    return kind(message, hint=hint, param=param)


def build_run_error(failed: events.RunFailed) -> FlashEdgeError:
    """The error that ended a run."""
    kind = _BY_CODE.get(failed.code, FlashEdgeError)
    if kind is QueueFull:
        return QueueFull(failed.error, retry_after_s=1.0, hint=failed.hint)
    return kind(failed.error, hint=failed.hint)


def parse_json_object(response: httpx.Response) -> dict[str, Any]:
    """The body of a response. Raises DaemonError if it is not a JSON object."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        request = response.request
        raise DaemonError(f"{request.method} {request.url.path}: the answer is no JSON object")
    return body


def parse_frame(frame: Frame) -> dict[str, Any]:
    """The frame's data. Raises DaemonError if it is not a JSON object."""
    try:
        data = json.loads(frame.data)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DaemonError("the daemon sent an event that is no JSON object")
    return data


def parse_event(frame: Frame, last: int) -> tuple[int, Event]:
    """The frame's event and its number, which is `last` for a frame without an id.

    Raises the error that the frame reports, or DaemonError when it can't be read.
    """
    data = parse_frame(frame)
    if frame.event == "error" or ("error" in data and "type" not in data):
        raise parse_error(data, 500)
    number = int(frame.id) if frame.id and frame.id.isdigit() else last
    try:
        return number, events.from_json(data)
    except ValueError as error:
        raise DaemonError(
            f"the daemon sent what this client can't read: {error}",
            hint="flashedge down, then flashedge up, so that both are of one version",
        ) from error
