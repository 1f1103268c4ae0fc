"""uvicorn's h11 connection, with limits on how long headers are and how long they take to arrive.

The API key is checked only once the headers are there (`api.guard`). Without these limits, a client
that has no key could use up memory with endless headers, or connections with slow ones.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 64 << 10
"""Most bytes of a request line and its headers. Chosen by hand: four times h11's default, so that
no client's key and cookies are too long."""
HEADER_TIMEOUT_S = 30.0
"""Longest time from the connection, or from the first byte of a later request, to the end of its
headers. Chosen by hand: 3 s would cut off clients that connect ahead of their first request."""


class HttpConnection(H11Protocol):
    """Closes connections whose headers take too long, and answers errors of HTTP in JSON."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no valid HTTP or has too long headers, then close."""
        text = f"{msg.rstrip('.')}, or its headers are longer than {HEADER_BYTES} bytes"
        error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        headers = [("content-type", "application/json"), ("connection", "close")]
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_headers(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
