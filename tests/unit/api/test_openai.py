"""/v1/chat/completions in process: shapes, plain and by search."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flashedge.events import NodeScored, RunCancelled, RunFailed, RunStarted
from flashedge.runtime.chat import ChatSpec
from flashedge.types import Message, NodeId, Sampling
from tests.support.api_rig import client_of, frames
from tests.support.fake_service import FakeService, script
from tests.support.made_run import build_step

CHAT: dict[str, Any] = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"
TEXT = "The answer is 2."


async def test_a_plain_answer_has_the_openai_fields() -> None:
    service = FakeService()
    async with client_of(service) as client:
        response = await client.post(URL, json={**CHAT, "n": 2})
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "bundled"
    assert [c["index"] for c in body["choices"]] == [0, 1]
    for choice in body["choices"]:
        assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
        assert choice["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == 7
    assert body["usage"]["completion_tokens"] == 10
    assert body["usage"]["total_tokens"] == 17
    assert service.closed_chats == 1


async def test_every_field_reaches_the_spec_and_the_pair_fills_the_rest() -> None:
    service = FakeService()
    body = {
        **CHAT,
        "n": 2,
        "stop": ["END", "\n\n"],
        "seed": 5,
        "temperature": 0,
        "top_p": 0.25,
        "top_k": 9,
        "max_completion_tokens": 3,
        "max_tokens": 3,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    async with client_of(service) as client:
        assert (await client.post(URL, json=body)).status_code == 200
        assert service.chats[-1] == ChatSpec(
            messages=(Message(role="user", content="hi"),),
            sampling=Sampling(temperature=0, top_p=0.25, top_k=9),
            seed=5,
            max_tokens=3,
            stop=("END", "\n\n"),
            n=2,
            chat_template_kwargs={"enable_thinking": False},
        )
        nulls = dict.fromkeys([*set(body) - set(CHAT), "tools", "response_format", "search"])
        assert (await client.post(URL, json={**CHAT, **nulls})).status_code == 200
        assert service.chats[-1] == ChatSpec(
            messages=(Message(role="user", content="hi"),),
            sampling=Sampling(temperature=0.7, top_p=0.95),
        )
        assert (await client.post(URL, json={**CHAT, "stop": "x"})).status_code == 200
        assert service.chats[-1].stop == ("x",)


async def test_fields_with_neutral_values_are_accepted() -> None:
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logprobs": False,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logit_bias": {},
        "modalities": ["text"],
    }
    async with client_of(FakeService()) as client:
        assert (await client.post(URL, json={**CHAT, **harmless})).status_code == 200


async def test_thinking_is_reasoning_and_no_content() -> None:
    service = FakeService()
    service.thoughts = 2  # the first two words
    async with client_of(service) as client:
        body = (await client.post(URL, json=CHAT)).json()
        message = body["choices"][0]["message"]
        thought, answer = "".join(service.words[:2]), "".join(service.words[2:])
        assert message["content"] == answer
        assert message["reasoning"] == message["reasoning_content"] == thought
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
        again = {"role": "user", "content": "and 2 + 2?"}
        messages = [*CHAT["messages"], message, again]
        assert (await client.post(URL, json={**CHAT, "messages": messages})).status_code == 200
        streamed = await client.post(URL, json={**CHAT, "stream": True})
    *chunks, _ = [f["data"] for f in frames(streamed.text)]
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(d.get("reasoning", "") for d in deltas) == thought
    assert "".join(d.get("content", "") for d in deltas) == answer


async def test_an_answer_can_be_sent_back_as_history() -> None:
    service = FakeService()
    async with client_of(service) as client:
        message = (await client.post(URL, json=CHAT)).json()["choices"][0]["message"]
        echoed = {**message, "tool_calls": None, "annotations": [], "reasoning_content": "[1] x"}
        again = {"role": "user", "content": "and 2 + 2?"}
        body = {**CHAT, "messages": [*CHAT["messages"], echoed, again]}
        assert (await client.post(URL, json=body)).status_code == 200
    assert [m.role for m in service.chats[-1].messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("usage", [False, True])
async def test_a_plain_answer_is_streamed(usage: bool) -> None:
    body = {**CHAT, "stream": True, "n": 2, "max_tokens": 3}
    if usage:
        body["stream_options"] = {"include_usage": True}
    async with client_of(FakeService()) as client:
        response = await client.post(URL, json=body)
    sent = frames(response.text)
    assert sent[-1]["data"] == "[DONE]"
    chunks = [f["data"] for f in sent[:-1]]
    assert len({c["id"] for c in chunks}) == 1
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 6
        assert all(c["usage"] is None for c in chunks)
    else:
        assert all("usage" not in c for c in chunks)
    for index in (0, 1):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in own) == "The answer is"
        assert [c["finish_reason"] for c in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == "length"


async def test_chats_are_counted_in_the_metrics() -> None:
    service = FakeService()
    async with client_of(service) as client:
        await client.post(URL, json=CHAT)
        await client.post(URL, json={**CHAT, "max_tokens": 2, "stream": True})
        service.failure = RuntimeError("x")
        await client.post(URL, json=CHAT)
        text = (await client.get("/metrics")).text
    assert 'flashedge:chats_total{finished_reason="stop"} 1.0' in text
    assert 'flashedge:chats_total{finished_reason="length"} 1.0' in text
    assert 'flashedge:chats_total{finished_reason="error"} 1.0' in text
    assert "flashedge:chat_tokens_total 7.0" in text
    assert 'flashedge:time_to_first_token_seconds_count{kind="chat"} 2.0' in text


# ---------------------------------------------------------------- by search


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
    assert not service.chats


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
