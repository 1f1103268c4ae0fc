"""uvicorn's HTTP connection on h11, with limits on the size of headers and on their time to arrive.

The checks of `api.guard` come after the headers, so a client without a key could send endless ones.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 64 << 10
"""Most bytes of a request's line and headers."""
HEADER_TIMEOUT_S = 30.0
"""Most seconds until they have arrived, from the start of the connection or of the request on."""


class HttpConnection(H11Protocol):
    """Closes a connection whose headers do not arrive in time, and says what was wrong as JSON."""

    _waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too many headers, and close the connection."""
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
            self._stop_waiting()
        elif self._waits is None and not self.transport.is_closing():
            self._waits = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
