"""Sends the requests of one turn of the event loop to an engine in one message.

The paths of a level are requested in one turn. Sent one by one, the first of them would start a
step of its own, while all others are still on their way and wait for it.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core_client import AsyncMPClient

Fail = Callable[[Sequence[str], Exception], None]
"""Ends the requests of these names with an error."""


class Outbox:
    """Stands between vLLM's front end and its client of one engine."""

    def __init__(self, client: AsyncMPClient, fail: Fail) -> None:
        """Replace the client's methods by which the front end sends requests and aborts."""
        from vllm.v1.serial_utils import MsgpackEncoder

        self._client, self._fail = client, fail
        self._encoder = MsgpackEncoder()
        self._add_one, self._abort = client.add_request_async, client.abort_requests_async
        client.add_request_async, client.abort_requests_async = self.add, self.abort
        self._waiting: dict[str, bytes] = {}
        """Encoded requests by their names."""
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, request: EngineCoreRequest) -> None:
        """Stand for the client's `add_request_async`. Raises EngineDeadError, and what encoding
        raises."""
        params = request.sampling_params
        guided = params is not None and params.structured_outputs
        if guided or request.mm_features or request.resumable or request.prompt_embeds is not None:
            await self._add_one(request)  # the engine prepares these in a thread of its own
            return
        self._client.ensure_alive()
        request.client_index = self._client.client_index
        (self._waiting[request.request_id],) = self._encoder.encode(request)
        if len(self._waiting) == 1:
            task = asyncio.create_task(self._send(), name="outbox")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def abort(self, request_ids: list[str]) -> None:
        """Stand for the client's `abort_requests_async`."""
        await self._abort([name for name in request_ids if not self._waiting.pop(name, None)])

    def close(self) -> None:
        """The engine has ended, and will not answer."""
        for task in self._sending:
            task.cancel()

    async def _send(self) -> None:
        """Nothing may come between taking the requests and sending them: it could be an abort."""
        requests = dict(self._waiting)
        self._waiting.clear()
        if not requests:
            return
        try:
            packed = list(requests.values())
            await self._client.call_utility_async("flashedge_call", "add_requests", [packed])
        except Exception as error:  # any: those who wait for answers have to know
            self._fail(list(requests), error)
