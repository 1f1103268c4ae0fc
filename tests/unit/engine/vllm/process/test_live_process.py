"""What is left of an engine's client when its process ends while it is shut down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from flashedge.engine.vllm.process.live_process import LiveProcess
from tests.unit.engine.vllm.process.test_engine_process import OPTIONS


class FakeClient:
    """An AsyncLLM that finds no process any more."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.output_handler: Any = None
        self.is_closed = False
        self.engine_core = SimpleNamespace(resources=self._close)

    def shutdown(self, timeout: float) -> None:
        raise self._error

    def _close(self) -> None:
        self.is_closed = True


async def test_sockets_are_closed_where_the_process_is_gone() -> None:
    process = LiveProcess(OPTIONS, on_end=lambda: None)
    client: Any = FakeClient(psutil.NoSuchProcess(4242))
    process.llm = client
    await process.shut_down()
    assert client.is_closed
    assert process.llm is None


async def test_other_errors_of_a_living_process_are_told() -> None:
    process = LiveProcess(OPTIONS, on_end=lambda: None)
    client: Any = FakeClient(ValueError("no"))
    process.llm = client
    with pytest.raises(ValueError, match="no"):
        await process.shut_down()
