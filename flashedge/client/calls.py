"""The calls that the synchronous and the asynchronous client share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import httpx

from flashedge.client.protocol import make_sendable

Reply = TypeVar("Reply")

READ_TIMEOUT_S = 45.0  # the daemon pings a stream every ten seconds
_LOAD_TIMEOUT_S = 600.0  # large models take minutes to load


class Calls(Generic[Reply]):
    """Each call gives the JSON object that the daemon answers, or an awaitable of it.

    It raises the FlashEdgeError that the answer names, or DaemonError when the daemon can't be
    reached.
    """

    call_timeout_s: ClassVar[float]

    def _json(self, method: str, path: str, **kwargs: Any) -> Reply:
        raise NotImplementedError

    def _patient(self, read_s: float | None) -> httpx.Timeout:
        """The timeout of a call whose answer may take `read_s`. None: any time."""
        return httpx.Timeout(self.call_timeout_s, read=read_s)

    def status(self) -> Reply:
        return self._json("GET", "/v1/status")

    def models(self) -> Reply:
        """`{"data": [{"id", …}]}`: each pair, and each pair with each strategy, `pair:beam`."""
        return self._json("GET", "/v1/models")

    def load(self) -> Reply:
        """Begin to load the engines. `health` tells how it goes on."""
        return self._json("POST", "/v1/load")

    def unload(self) -> Reply:
        return self._json("POST", "/v1/unload")

    def runs(
        self,
        *,
        limit: int = 20,
        before: str | None = None,
        status: str | None = None,
        contains: str | None = None,
    ) -> Reply:
        """`{"data": [summary…], "has_more": bool}`, newest first. before: only of runs older than
        this one; contains: only of runs with this text in the problem, the answer or its path."""
        options = {"limit": limit, "before": before, "status": status, "contains": contains}
        query = {name: value for name, value in options.items() if value is not None}
        return self._json("GET", "/v1/runs", params=query)

    def run(self, run: str, wait_s: float = 0.0) -> Reply:
        """The run's object, once it is over or after `wait_s`, at most half a minute."""
        waiting: dict[str, Any] = {"params": {"wait_s": wait_s}}
        waiting["timeout"] = self._patient(self.call_timeout_s + wait_s)
        return self._json("GET", f"/v1/runs/{run}", **(waiting if wait_s else {}))

    def submit(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
        """Start a run without following it: `{"id", "status", "position", …}`, once the pair is
        loaded."""
        sent, timeout = make_sendable(body), self._patient(_LOAD_TIMEOUT_S)
        return self._json("POST", "/v1/runs", json=sent, headers=headers, timeout=timeout)

    def repeat_run(self, run: str) -> Reply:
        """Start a run's request once more, as a new run: `{"id", "status", "position", …}`."""
        return self._json("POST", f"/v1/runs/{run}/repeat")

    def cancel(self, run: str) -> Reply:
        return self._json("POST", f"/v1/runs/{run}/cancel")

    def delete(self, run: str) -> Reply:
        return self._json("DELETE", f"/v1/runs/{run}")

    def score(self, body: Mapping[str, Any]) -> Reply:
        """See /v1/score. There is no limit to the time that it takes."""
        sent = make_sendable(body)
        return self._json("POST", "/v1/score", json=sent, timeout=self._patient(None))
