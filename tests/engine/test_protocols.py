"""vLLM's protocol handlers over our engine: every route answers, tagged, seeded and counted."""

from __future__ import annotations

import inspect
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from flashedge.api.protocols.paths import PROTOCOL_ROUTES
from flashedge.engine.http_requests import PlainRequests, RequestTags, tag_requests
from flashedge.engine.vllm.inside.keys import ARGS_KEY
from flashedge.engine.vllm.pair import VllmPair
from flashedge.engine.vllm.serving.tagged_client import UNTAGGED, TaggedClient

pytestmark = pytest.mark.asyncio(loop_scope="session")
TAGS = RequestTags(client="me", seed=7, is_seeded=True, program="p", priority=3)
FLAGGED = replace(TAGS, deterministic=True)
SAY = [{"role": "user", "content": "Tom has 3 apples and buys 4. How many now?"}]
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}  # else the pair writes digits for ever
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": TOOL_SCHEMA}}
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture(loop_scope="session")
async def client(pair: VllmPair) -> AsyncIterator[httpx.AsyncClient]:
    app: Any = await pair.serve_protocols(PlainRequests())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def seen(pair: VllmPair, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reaches vLLM: (parameters, priority) of each request."""
    llm = pair.generator.process.get_llm()
    found: list[Any] = []
    generate = llm.generate

    def record(prompt: Any, params: Any, name: str, **options: Any) -> Any:
        found.append((params, options["priority"]))
        return generate(prompt, params, name, **options)

    monkeypatch.setattr(llm, "generate", record)
    return found


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    async with tag_requests(TAGS):
        response = await client.post(path, json={"model": "bundled", **body})
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [li[6:] for li in response.text.splitlines() if li.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]
    return response.json()


ROUTES = [
    (CHAT, {"messages": SAY, "max_tokens": 8}),
    (CHAT, {"messages": SAY, "max_tokens": 8, "stream": True}),
    (CHAT, {"messages": SAY, "max_tokens": 8, "n": 2}),
    (CHAT, {"messages": SAY, "max_tokens": 4, "presence_penalty": 1.0}),
    (CHAT, {"messages": SAY, "max_tokens": 4, "use_beam_search": True, "n": 2}),
    ("/v1/completions", {"prompt": "1 + 1 =", "max_tokens": 4}),
    ("/v1/completions", {"prompt": ["1 +", "2 +"], "max_tokens": 4, "stream": True}),
    (CHAT, {"messages": SAY, "max_tokens": 40, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/responses", {"input": "1 + 1", "max_output_tokens": 8}),
    ("/v1/responses", {"input": "1 + 1", "max_output_tokens": 8, "stream": True}),
    ("/v1/messages", {"messages": SAY, "max_tokens": 8}),
    ("/v1/messages", {"messages": SAY, "max_tokens": 8, "stream": True}),
]


NOTHING_GENERATED = {"/v1/messages/count_tokens", "/tokenize", "/detokenize"}


async def test_every_route_that_generates_is_among_them() -> None:
    """A route that is served without being named here fails."""
    assert {path for path, _ in ROUTES} == set(PROTOCOL_ROUTES) - NOTHING_GENERATED


async def test_a_request_can_be_made_in_no_other_way(pair: VllmPair) -> None:
    llm = pair.generator.process.get_llm()
    client = TaggedClient(llm, pair.generator.process, PlainRequests(), "bundled")
    ways = {
        name
        for name, method in inspect.getmembers(type(llm), inspect.isfunction)
        if not name.startswith("_") and "prompt" in inspect.signature(method).parameters
    }
    assert ways == {"generate", *UNTAGGED}
    for name in UNTAGGED:
        with pytest.raises(AttributeError, match="without tags"):
            getattr(client, name)


async def test_routes_that_generate_nothing_reach_no_engine(
    client: httpx.AsyncClient, seen: list[Any]
) -> None:
    for path in NOTHING_GENERATED:
        await post(
            client, path, **({"tokens": [5]} if path == "/detokenize" else {"messages": SAY})
        )
    assert not seen


async def test_vllm_itself_scores_no_pairs_by_a_verifier_of_steps(
    client: httpx.AsyncClient,
) -> None:
    """So `api.protocols.switch` refuses them before."""
    async with tag_requests(TAGS):
        body = {"model": "bundled", "text_1": "a", "text_2": "b"}
        response = await client.post("/v1/score", json=body)
    assert response.status_code == 501
    assert "does not support Score API" in response.text


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_every_route_tags_its_requests(
    client: httpx.AsyncClient, seen: list[Any], path: str, body: dict[str, Any]
) -> None:
    await post(client, path, **body)
    assert seen
    for params, priority in seen:
        ours = params.extra_args[ARGS_KEY]
        assert (ours["client"], ours["program"], ours["deterministic"]) == ("me", "p", False)
        assert params.seed == TAGS.seed
        assert priority == TAGS.priority


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_followed_while_it_runs(pair: VllmPair, stream: bool) -> None:
    """Also one whose client gets the whole answer at its end."""
    noted: list[int] = []
    watch = nullcontext(lambda prompt_tokens, new_tokens, finishes: noted.append(new_tokens))
    app: Any = await pair.serve_protocols(PlainRequests(lambda ask: watch))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"messages": SAY, "max_tokens": 40, "ignore_eos": True, "logprobs": True}
        found = await post(client, CHAT, **body, stream=stream)
    assert sum(noted) == 40
    assert len(noted) > 5
    if not stream:
        choice = found["choices"][0]
        assert len(choice["logprobs"]["content"]) == found["usage"]["completion_tokens"] == 40


async def test_the_second_runner_serves_no_deterministic_request(
    pair: VllmPair, client: httpx.AsyncClient, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = pair.generator.process
    monkeypatch.setattr(process, "options", replace(process.options, second_runner=True))
    async with tag_requests(FLAGGED):
        response = await client.post(CHAT, json={"model": "bundled", "messages": SAY})
    assert response.status_code == 400
    assert "(feature second_runner)" in response.json()["error"]["message"]
    assert not seen


@pytest.mark.parametrize("sampling", [{"n": 2}, {"temperature": 0}, {"top_p": 0.9, "min_p": 0.05}])
async def test_a_deterministic_request_has_the_answer_of_others(
    client: httpx.AsyncClient, seen: list[Any], sampling: dict[str, Any]
) -> None:
    """In fp32. A stop string is found behind verified tokens."""
    body = {"model": "bundled", "messages": SAY, "max_tokens": 60, "logprobs": True}
    body |= {"stop": ["7"], **sampling}
    answers = []
    for tags in (TAGS, FLAGGED):
        async with tag_requests(tags):
            response = await client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        answers.append(response.json()["choices"])
    assert seen[-1][0].extra_args[ARGS_KEY]["deterministic"]
    plain, flagged = ([c["message"]["content"] for c in choices] for choices in answers)
    assert plain == flagged
    assert [len(c["logprobs"]["content"]) for c in answers[1]] == [
        len(c["logprobs"]["content"]) for c in answers[0]
    ]


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
async def test_what_no_pass_draws_is_refused_by_name(
    client: httpx.AsyncClient, seen: list[Any], field: dict[str, Any], name: str
) -> None:
    async with tag_requests(FLAGGED):
        response = await client.post(
            CHAT, json={"model": "bundled", "messages": SAY, "max_tokens": 8, **field}
        )
    assert response.status_code == 400
    assert f"a deterministic request can't have {name}" in response.json()["error"]["message"]
    assert not seen


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_count_behind_the_thinking(
    pair: VllmPair, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The grammar leaves the model no other text."""
    process = pair.generator.process
    said = {"choice": ["<think>so Q: is</think>7 Q: 8"]}
    asked = {"messages": SAY, "max_tokens": 60, "structured_outputs": said, "stop": ["Q:"]}
    for parser, text in ((None, "<think>so "), ("qwen3", "<think>so Q: is</think>7 ")):
        monkeypatch.setattr(process, "options", replace(process.options, reasoning_parser=parser))
        answer = await post(client, CHAT, **asked, stream=stream)
        if stream:
            found = "".join(c["choices"][0]["delta"].get("content") or "" for c in answer)
        else:
            found = answer["choices"][0]["message"]["content"]
        assert found == text


async def test_a_drawn_seed_travels_without_slowing_the_batch(
    client: httpx.AsyncClient, seen: list[Any]
) -> None:
    async with tag_requests(RequestTags(client="me", seed=7)):
        await client.post(CHAT, json={"model": "bundled", "messages": SAY, "max_tokens": 4})
    ((params, _),) = seen
    assert params.extra_args[ARGS_KEY]["drawn_seed"] == 7
    assert params.seed is None
    assert params.temperature > 0


async def test_chat_streams_what_it_answers_whole(client: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"messages": SAY, "temperature": 0.9, "max_tokens": 40}
    whole = await post(client, CHAT, **asked)
    again = await post(client, CHAT, **asked)
    text = whole["choices"][0]["message"]["content"]
    assert text
    assert again["choices"][0]["message"]["content"] == text  # the seed of the tags
    chunks = await post(client, CHAT, **asked, stream=True)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == text


async def test_choices_differ_and_the_first_is_that_of_one(client: httpx.AsyncClient) -> None:
    open_ended = [{"role": "user", "content": "Tell me a story about a fox and the moon."}]
    asked: dict[str, Any] = {"messages": open_ended, "temperature": 2.0, "max_tokens": 40}
    alone = await post(client, CHAT, **asked)
    four = await post(client, CHAT, **asked, n=4)
    texts = [choice["message"]["content"] for choice in four["choices"]]
    assert texts[0] == alone["choices"][0]["message"]["content"]
    assert len(set(texts)) > 1


async def test_log_probabilities_are_vllms(client: httpx.AsyncClient) -> None:
    answer = await post(
        client, CHAT, messages=SAY, max_tokens=5, logprobs=True, top_logprobs=3, temperature=0.8
    )
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    assert all(len(token["top_logprobs"]) >= 3 for token in content)
    assert all(token["logprob"] <= 0 for token in content)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_a_tool_call_is_valid(client: httpx.AsyncClient, choice: Any) -> None:
    answer = await post(
        client, CHAT, messages=SAY, tools=[TOOL], tool_choice=choice, max_tokens=120
    )
    (call,) = answer["choices"][0]["message"]["tool_calls"][:1]
    assert call["function"]["name"] == "add"
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}


async def test_tools_are_accepted_where_none_is_called(client: httpx.AsyncClient) -> None:
    answer = await post(client, CHAT, messages=SAY, tools=[TOOL], max_tokens=8)
    assert answer["choices"][0]["message"]["content"]


async def test_an_answer_follows_a_schema(client: httpx.AsyncClient) -> None:
    shape = {"name": "sum", "schema": TOOL_SCHEMA, "strict": True}
    answer = await post(
        client,
        CHAT,
        messages=SAY,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": shape},
    )
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"a", "b"}


async def test_a_conversation_with_tool_results_is_accepted(client: httpx.AsyncClient) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        *SAY,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]
    await post(client, CHAT, messages=messages, tools=[TOOL], max_tokens=4)


async def test_tokens_are_counted(client: httpx.AsyncClient) -> None:
    counted = await post(client, "/v1/messages/count_tokens", messages=SAY)
    tokens = await post(client, "/tokenize", messages=SAY)
    assert counted["input_tokens"] == tokens["count"] > 5
    text = await post(client, "/detokenize", tokens=tokens["tokens"])
    assert "apples" in text["prompt"]


async def test_a_prompt_that_is_too_long_is_refused(client: httpx.AsyncClient) -> None:
    long = [{"role": "user", "content": "1 + 1 = 2\n" * 1000}]
    async with tag_requests(TAGS):
        response = await client.post(CHAT, json={"model": "bundled", "messages": long})
    assert response.status_code == 400
    assert "maximum context length" in response.json()["error"]["message"]


async def test_handlers_follow_the_engine_to_its_next_process(
    pair: VllmPair, client: httpx.AsyncClient
) -> None:
    """An open request gets 503 when its engine dies, and the next process serves."""
    before = await post(client, CHAT, messages=SAY, max_tokens=20, temperature=0.8)
    pid = pair.generator.health().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with tag_requests(TAGS):
        response = await client.post(CHAT, json={"model": "bundled", "messages": SAY})
    assert response.status_code == 503, response.text
    assert "generator engine" in response.json()["error"]["message"]
    await pair.generator.wait_ready(60)
    after = await post(client, CHAT, messages=SAY, max_tokens=20, temperature=0.8)
    assert after["choices"][0]["message"] == before["choices"][0]["message"]
