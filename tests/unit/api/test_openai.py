"""/v1/chat/completions by a search, in process: shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flashedge.events import NodeScored, RunCancelled, RunFailed, RunStarted
from flashedge.types import NodeId
from tests.support.api_rig import client_of, frames
from tests.support.fake_service import FakeService, script
from tests.support.made_run import build_step

CHAT: dict[str, Any] = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("change", "strategy", "n"),
    [
        ({"model": "bundled:beam-4"}, "beam", 4),
        ({"model": "bundled:best-of-n-8"}, "best_of_n", 8),
        ({"model": "bundled:best_of_n"}, "best_of_n", 16),
        ({"search": {}}, "beam", 16),
        ({"search": {"strategy": "best_of_n", "n": 2}}, "best_of_n", 2),
    ],
)
async def test_model_name_and_search_object_choose_a_search(
    change: dict[str, Any], strategy: str, n: int
) -> None:
    service = FakeService()
    async with client_of(service) as client:
        response = await client.post(URL, json={**CHAT, **change, "seed": 3, "max_tokens": 99})
    assert response.status_code == 200, response.text
    spec = service.last.spec
    assert (spec.strategy, spec.n, spec.seed, spec.max_path_tokens) == (strategy, n, 3, 99)
    assert spec.max_step_tokens == 96
    assert not service.protocols.asked


async def test_a_search_without_a_seed_draws_and_reports_one() -> None:
    service = FakeService()
    async with client_of(service) as client:
        seeds = [
            (await client.post(URL, json={**CHAT, "search": {}})).json()["flashedge"]["seed"]
            for _ in range(2)
        ]
    assert seeds == [h.spec.seed for h in service.handles.values()]
    assert seeds[0] != seeds[1]


async def test_a_search_answers_like_a_chat() -> None:
    service = FakeService()
    async with client_of(service) as client:
        response = await client.post(URL, json={**CHAT, "model": "bundled:beam-4"})
    body = response.json()
    assert response.headers["x-flashedge-run"] == "run-1"
    assert body["model"] == "bundled:beam-4"
    assert body["choices"][0]["message"]["content"] == "1 + 1 = 2.\n\n\\boxed{2}"
    assert body["choices"][0]["finish_reason"] == "stop"
    # everything generated counts; what is not in the answer is reasoning
    assert body["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 80,
        "total_tokens": 91,
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    about = body["flashedge"]
    assert about["run_id"] == "run-1"
    assert about["answer"] == "2"
    assert about["votes"] == [{"answer": "2", "weight": 0.9, "count": 4}]


async def test_a_search_streams_its_steps_as_reasoning() -> None:
    body = {
        **CHAT,
        "model": "bundled:beam-4",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with client_of(FakeService()) as client:
        sent = frames((await client.post(URL, json=body)).text)
    assert sent[-1]["data"] == "[DONE]"
    *chunks, usage = [f["data"] for f in sent[:-1]]
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert chunks[0]["flashedge"] == {"run_id": "run-1"}
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == [
        "[1] 1 + 1 = 3.\n",
        "[2] 1 + 1 = 2.\n",
        "[1] score 0.125\n",
        "[2] score 0.875\n",
    ]
    assert deltas[-2] == {"content": "1 + 1 = 2.\n\n\\boxed{2}"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["flashedge"]["answer"] == "2"
    assert usage["usage"]["completion_tokens_details"]["reasoning_tokens"] == 60


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (RunFailed(error="engine died", code="engine_dead", hint="try again"), "engine_dead"),
        (RunCancelled(reason="by hand"), "cancelled"),
    ],
)
async def test_a_search_that_fails_within_the_stream_sends_an_error(ending: Any, code: str) -> None:
    service = FakeService(autoplay=False)
    async with client_of(service) as client:
        body = {**CHAT, "search": {}, "stream": True}
        asked = asyncio.create_task(client.post(URL, json=body))
        await asyncio.sleep(0.02)
        service.last.emit(
            RunStarted(config={}, queue_s=0.0), build_step(1, "1 + 1 = 2.\n\n"), ending
        )
        sent = frames((await asked).text)
    assert sent[-1]["data"]["error"]["code"] == code
    assert "event" not in sent[-1]  # OpenAI's clients look for an unnamed event
    assert "[DONE]" not in [f["data"] for f in sent]


async def test_numbers_that_json_does_not_have_become_null() -> None:
    service = FakeService(autoplay=False)
    async with client_of(service) as client:
        asked = asyncio.create_task(client.post("/v1/solve", json={"problem": "x", "stream": True}))
        await asyncio.sleep(0.02)
        started, *_, finished = script(service.last.spec, "run-1")
        odd = NodeScored(node=NodeId(1), scores=(float("nan"), 0.5), score=float("inf"))
        service.last.emit(started, odd, finished)
        sent = frames((await asked).text)
    scored = next(f["data"] for f in sent if f["event"] == "NodeScored")
    assert (scored["scores"], scored["score"]) == ([None, 0.5], None)
