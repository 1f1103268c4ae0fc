"""Checks of every request before its route: Host, Origin, API key, size.

A daemon on a loopback address needs no key by default. The checks of Host (against DNS rebinding)
and Origin (against cross-site requests) protect it from web pages in the user's browser.
"""

import asyncio
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flashedge.api.bodies import replay_body
from flashedge.api.failures import Refusal, build_error_response
from flashedge.api.paths import MESSAGES
from flashedge.api.protocols.error_bodies import build_messages_error, rewrite_error
from flashedge.config import Config

BODY_TIMEOUT_S, BODY_BYTES_PER_S = 30.0, 16 << 10
"""A body may take BODY_TIMEOUT_S and a second more for each BODY_BYTES_PER_S received. Chosen by
hand: with ten times as long, idle clients pile up; with a tenth, slow links do not finish."""
_CLOSE = {"Connection": "close"}


class Guard:
    """The middleware. It answers HEAD like GET, and OPTIONS of pages whose origin is allowed."""

    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = app
        self._max_bytes = config.max_request_bytes
        self._key = config.api_key.encode() if config.api_key else None
        self._is_loopback = config.is_loopback
        self._host = config.host.strip("[]").lower()
        self._origins = config.allowed_origins or ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(MESSAGES):
            send = rewrite_error(send, build_messages_error)
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, drop_body(send)
        headers = Headers(scope=scope)
        if (origin := headers.get("origin")) in self._origins:
            send = allow_origin(send, str(origin))
        try:
            if self._is_loopback:
                self._check_host_and_origin(headers)
            if scope["method"] == "OPTIONS" and origin in self._origins:
                await answer_preflight(headers)(scope, receive, send)  # browsers send no key here
                return
            if scope["path"] != "/health":  # supervisors read it without a key
                self._check_key(headers)
            body = await self._read_body(headers, receive)
        except Refusal as refusal:
            await build_error_response(refusal)(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, replay_body(body, receive), send)

    def _check_host_and_origin(self, headers: Headers) -> None:
        for host in headers.getlist("host") or [""]:
            if not self._is_local(f"//{host}"):
                raise Refusal(
                    403,
                    "bad_host",
                    f"the Host header is {host!r}, which is not this machine",
                    hint="address the daemon as localhost or 127.0.0.1",
                )
        origin = headers.get("origin")
        if origin is None or origin in self._origins:
            return
        is_page = origin == "null" or origin.startswith(("http:", "https:"))
        if is_page and not self._is_local(origin):
            raise Refusal(
                403,
                "bad_origin",
                f"requests from pages of {origin} are refused",
                hint="the setting allowed_origins lists pages that may send them",
            )

    def _is_local(self, url: str) -> bool:
        try:
            name = (urlsplit(url).hostname or "").removesuffix(".")
            return name in ("localhost", self._host) or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")  # Anthropic's clients send it there
        # compare_digest takes equally long for every wrong key
        if not hmac.compare_digest(given.strip().encode("latin-1"), self._key):
            raise Refusal(
                401,
                "invalid_api_key",
                "the API key is wrong" if given else "an API key is needed",
                hint="send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body, or None when the client disconnects. Raises Refusal."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            raise self._refuse_size()
        body, has_more = bytearray(), True
        clock = asyncio.get_running_loop().time
        began = clock()
        while has_more:
            until = began + BODY_TIMEOUT_S + len(body) / BODY_BYTES_PER_S
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Refusal(
                    408,
                    "body_timeout",
                    "the rest of the request's body did not arrive in time",
                    headers=_CLOSE,
                ) from None
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
            if len(body) > self._max_bytes:  # a chunked body announces no length
                raise self._refuse_size()
        return bytes(body)

    def _refuse_size(self) -> Refusal:
        return Refusal(
            413,
            "request_too_large",
            f"the request is longer than {self._max_bytes} bytes",
            hint="shorten it, or raise the setting max_request_bytes",
            headers=_CLOSE,  # the rest of the body stays unread
        )


def answer_preflight(headers: Headers) -> Response:
    """The answer to a browser that asks whether a page may send a request."""
    allowed = {"Access-Control-Allow-Methods": "DELETE, GET, HEAD, POST"}
    if names := headers.get("access-control-request-headers"):
        allowed["Access-Control-Allow-Headers"] = names
    if headers.get("access-control-request-private-network") == "true":
        allowed["Access-Control-Allow-Private-Network"] = "true"
    # for so many seconds the page does not ask again, even if allowed_origins changes
    return Response(status_code=204, headers={**allowed, "Access-Control-Max-Age": "600"})


def allow_origin(send: Send, origin: str) -> Send:
    """A `send` that lets the pages of an origin read the answer."""
    added = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"X-FlashEdge-Run, Retry-After"),
        (b"vary", b"Origin"),
    ]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sending


def drop_body(send: Send) -> Send:
    """A `send` for HEAD: the answer without its body. A stream is told that its client is gone."""

    async def sending(message: Message) -> None:
        await send({**message, "body": b"", "more_body": False} if "body" in message else message)
        if message.get("more_body", False):
            raise OSError("HEAD has no body")

    return sending
