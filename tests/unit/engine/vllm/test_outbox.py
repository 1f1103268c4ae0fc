"""Requests of one turn of the event loop go to the engine together, and aborts behind them."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock

import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.engine.exceptions import EngineDeadError

from flashedge.engine.vllm.inside import calls
from flashedge.engine.vllm.inside.step_record import RECORD_BYTES, FaultHandler, StepRecord
from flashedge.engine.vllm.process.live_process import Outbox


def make_request(name: str, seed: int = 7, **options: Any) -> EngineCoreRequest:
    params = SamplingParams(seed=7, extra_args={"flashedge": {"seed": seed}}, **options)
    unset = ("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank")
    tokens = {"prompt_token_ids": [1, 2, 3], "arrival_time": 0.0, **dict.fromkeys(unset)}
    return EngineCoreRequest(request_id=name, sampling_params=params, **tokens)


class Client:
    """vLLM's client of an engine, with an outbox. `said` is what the engine is told, in order."""

    client_index = 3

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.is_dead, self.answers = False, True
        self.failed: list[tuple[str, Exception]] = []
        self.outbox = Outbox(self, self.fail)  # type: ignore[arg-type]

    def fail(self, names: Sequence[str], error: Exception) -> None:
        self.failed += [(name, error) for name in names]

    def ensure_alive(self) -> None:
        if self.is_dead:
            raise EngineDeadError

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.said.append(("add", request.request_id))

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        if request_ids:
            self.said.append(("abort", request_ids))

    async def call_utility_async(self, method: str, name: str, args: list[Any]) -> None:
        self.said.append((f"{method} {name}", args))
        if not self.answers:
            await asyncio.Event().wait()


async def send(client: Any, *names: str) -> None:
    for name in names:
        await client.add_request_async(make_request(name))
    await asyncio.sleep(0.01)


@dataclass
class Core:
    """An engine core. A request of the name "bad" can't be prepared, and "worse" not added."""

    added: list[EngineCoreRequest] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def preprocess_add_request(self, request: EngineCoreRequest) -> tuple[EngineCoreRequest, int]:
        if request.request_id == "bad":
            raise ValueError("it is bad")
        return request, 0

    def _handle_client_request(self, kind: EngineCoreRequestType, found: Any) -> None:
        assert kind is EngineCoreRequestType.ADD
        if found[0].request_id == "worse":
            raise ValueError("it is worse")
        self.added.append(found[0])

    def _handle_request_preproc_error(self, request: EngineCoreRequest) -> None:
        self.refused.append(request.request_id)


def deliver(said: tuple[str, Any]) -> Core:
    method, args = said
    assert method == "flashedge_call add_requests"
    core: Any = Core()
    calls.call(core, "add_requests", args)
    return core  # type: ignore[no-any-return]


def list_names(said: tuple[str, Any]) -> list[str]:
    return [request.request_id for request in deliver(said).added]


@pytest.fixture
def client() -> Any:
    return Client()


async def test_requests_of_one_turn_arrive_in_one_message(client: Any) -> None:
    options: list[dict[str, Any]] = [{}, {"max_tokens": 5, "stop_token_ids": [4]}, {"logprobs": 0}]
    requests = [make_request(str(i), temperature=0.0, **each) for i, each in enumerate(options)]
    await asyncio.gather(*(client.add_request_async(each) for each in requests))
    await asyncio.sleep(0.01)
    (said,) = client.said
    added = deliver(said).added
    assert added == requests
    assert {request.client_index for request in requests} == {3}
    assert added[0].sampling_params.extra_args == {"flashedge": {"seed": 7}}
    await send(client, "d")
    assert list_names(client.said[1]) == ["d"]


async def test_requests_share_equal_parameters_but_not_ours(client: Any) -> None:
    requests = [make_request(str(seed), seed, stop_token_ids=[4]) for seed in range(3)]
    for request in requests:
        await client.add_request_async(request)
    await asyncio.sleep(0.01)
    core = deliver(client.said[0])
    assert core.added == requests
    core.added[0].sampling_params.extra_args["flashedge"]["seed"] = 9  # type: ignore[union-attr, index]
    core.added[0].sampling_params.max_tokens = 2  # type: ignore[union-attr]
    assert core.added[1:] == requests[1:]
    assert [each.sampling_params.extra_args["flashedge"]["seed"] for each in requests] == [0, 1, 2]  # type: ignore[union-attr, index]


async def test_an_abort_never_overtakes_its_request(client: Any) -> None:
    for name in "abc":
        await client.add_request_async(make_request(name))
    await client.abort_requests_async(["b"])
    await asyncio.sleep(0)
    await client.abort_requests_async(["a"])
    await asyncio.sleep(0.01)
    added, aborted = client.said
    assert list_names(added) == ["a", "c"]
    assert aborted == ("abort", ["a"])
    await client.add_request_async(make_request("d"))
    await client.abort_requests_async(["d"])
    await asyncio.sleep(0.01)
    assert len(client.said) == 2, "nothing is left to send"


async def test_a_dead_engine_gets_nothing(client: Any) -> None:
    client.answers = False
    await send(client, "a")
    client.is_dead = True
    with pytest.raises(EngineDeadError):
        await client.add_request_async(make_request("b"))
    client.outbox.close()
    await asyncio.sleep(0.01)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "outbox"] == []
    assert len(client.said) == 1


async def test_a_schedulers_error_is_the_end(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record = StepRecord(bytearray(RECORD_BYTES))
    await send(client, "worse")
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [FaultHandler(record)])
    with pytest.raises(SystemExit):
        deliver(client.said[0])
    assert record.fault == "ValueError: it is worse"


async def test_a_request_that_cant_be_encoded_or_prepared_concerns_nobody_else(client: Any) -> None:
    await client.add_request_async(make_request("a"))
    with pytest.raises(OverflowError):
        await client.add_request_async(make_request("b", top_k=10**30))
    await send(client, "bad", "c")
    assert list_names(client.said[0]) == ["a", "c"]
    assert deliver(client.said[0]).refused == ["bad"]
    guided = make_request("d", structured_outputs=StructuredOutputsParams(regex="a+"))
    await client.add_request_async(guided)
    assert client.said[1:] == [("add", "d")], "one with a grammar goes alone"


async def test_requests_that_the_engine_does_not_take_fail(client: Any) -> None:
    error = RuntimeError("Server shutting down")
    client.call_utility_async = AsyncMock(side_effect=error)
    await send(client, "a", "b")
    assert client.failed == [("a", error), ("b", error)]
