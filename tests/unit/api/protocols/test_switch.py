"""What the switch does with a request before vLLM's handlers see it, and with their answers; which
search it asks for, and what a search adds to the answer. The rest of the answer is vLLM's: see
tests/engine/test_daemon.py."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from httpx import AsyncClient

from flashedge.api.app import create_app
from flashedge.api.paths import MESSAGES, PROTOCOL_ROUTES, RESPONSES
from flashedge.api.protocols.search import ProtocolSearch, add_result, apply_effort, rank_paths
from flashedge.api.protocols.switch import read_tags
from flashedge.api.specs import MAX_PRIORITY, ModelName
from flashedge.api.sse import PING, keep_alive
from flashedge.config import load_config
from flashedge.engine.http_requests import RequestTags, SearchPrompt
from flashedge.errors import RequestError
from flashedge.events import NodeScored, RunCancelled, RunFailed, RunStarted
from flashedge.models.registry import load_pairs, parse_pairs
from flashedge.types import MAX_SEED, NodeId, Sampling
from tests.support.api_rig import ask, client_of, frames, keep_in
from tests.support.fake_protocols import FakeProtocols
from tests.support.fake_service import FakeService, fake_pair, script
from tests.support.made_run import build_result, build_step

CHAT: dict[str, Any] = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"
PLAIN = ModelName(pair="bundled", search=None)
TAGS = RequestTags(client="", seed=1)


@pytest.mark.parametrize("path", sorted(PROTOCOL_ROUTES))
async def test_plain_names_reach_the_protocols_unchanged(path: str) -> None:
    body = {**CHAT, "tools": [{"x": 1}], "unknown": {"kept": True}}
    service, response = await ask(path, body)
    assert response.status_code == 200, response.text
    assert [(p, b) for p, b, _ in service.protocols.asked] == [(path, body)]
    assert not service.handles


async def test_another_method_or_path_stays_with_us(client: AsyncClient) -> None:
    service, response = await ask("/v1/completions", {**CHAT, "model": "bundled:beam-4"})
    assert (response.status_code, URL in response.text) == (400, True), "with the way to go"
    assert not service.handles
    assert (await client.get(URL)).status_code == 405
    assert (await client.post("/v1/chat/completions/batch", json=CHAT)).status_code == 404
    assert set(PROTOCOL_ROUTES) <= set((await client.get("/openapi.json")).json()["paths"])


@pytest.mark.parametrize(
    ("headers", "body", "client", "program"),
    [
        ({}, {}, "127.0.0.1", None),
        ({"X-FlashEdge-Client": "ide"}, {"user": "u"}, "ide", None),
        ({"X-FlashEdge-Program": "p"}, {"prompt_cache_key": "k"}, "127.0.0.1", "p of 127.0.0.1"),
        ({}, {"user": "u", "prompt_cache_key": "k"}, "u", "k of u"),
        ({}, {"safety_identifier": "s"}, "s", None),
        ({}, {"metadata": {"user_id": "m"}}, "m", None),
        ({}, {"user": 5, "metadata": "x", "prompt_cache_key": ["y"]}, "127.0.0.1", None),
        ({}, {"user": "x" * 999}, "x" * 200, None),
    ],
)
async def test_tags_say_who_asks_and_for_what(
    headers: dict[str, str], body: dict[str, Any], client: str, program: str | None
) -> None:
    service, _ = await ask(URL, {**CHAT, **body}, headers=headers)
    ((_, _, tags),) = service.protocols.asked
    assert (tags.client, tags.program) == (client, program)


SCOPE = {"type": "http", "path": URL, "headers": [], "client": None}


def test_tags_hold_seed_priority_and_determinism() -> None:
    tags = read_tags(SCOPE, {"seed": 5, "priority": -2, "deterministic": True})
    assert (tags.seed, tags.is_seeded, tags.priority, tags.deterministic) == (5, True, -2, True)
    assert not read_tags(SCOPE, {}).is_seeded
    for seed in (-1, 1 << 80):
        assert 0 <= read_tags(SCOPE, {"seed": seed}).seed <= MAX_SEED
    assert read_tags(SCOPE, {"priority": 1 << 80}).priority == MAX_PRIORITY
    strange = read_tags(SCOPE, {"seed": "5", "priority": True, "deterministic": "yes"})
    assert (strange.priority, strange.deterministic) == (0, False)
    assert len({read_tags(SCOPE, {}).seed for _ in range(8)}) == 8


async def test_thinking_has_both_of_its_names() -> None:
    text = 'it said "reasoning":"no" \\ and left'
    service = FakeService(protocols=FakeProtocols(reasoning=text, words=(text,)))
    message = (await ask(URL, CHAT, service))[1].json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == message["content"] == text
    _, streamed = await ask(URL, {**CHAT, "stream": True}, service)
    chunks = [f["data"] for f in frames(streamed.text)][:-1]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert said == text


async def test_tools_with_schemas_and_neutral_fields_are_the_handlers() -> None:
    service = FakeService()
    tools = [{"type": "custom", "name": "a", "input_schema": {}}, None]
    await ask(MESSAGES, {**CHAT, "tools": tools}, service)
    await ask(RESPONSES, {**CHAT, "background": False, "previous_response_id": None}, service)
    assert len(service.protocols.asked) == 2


SAID = {"type": "text", "text": "The"}
THOUGHT = {"type": "thinking", "thinking": "so"}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
PREFILLS: list[tuple[Any, bool]] = [
    *((said, True) for said in ("The answer is", [SAID], [THOUGHT, SAID])),
    *((said, False) for said in ("", [], None, [CALL], [CALL, SAID], [SAID, THOUGHT])),
]


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
@pytest.mark.parametrize(("content", "continues"), PREFILLS, ids=lambda v: str(v)[:40])
async def test_an_answer_goes_on_with_the_assistants_last_text(
    content: Any, continues: bool, model: str
) -> None:
    """In Anthropic's protocol only. In the others a request says so by a field."""
    turns = [*CHAT["messages"], {"role": "assistant", "content": content}]
    for path, expected in (("/v1/messages", continues), (URL, False)):
        service, _ = await ask(path, {"model": model, "messages": turns})
        ((_, _, tags),) = service.protocols.asked
        assert tags.continues is expected


def test_only_the_last_message_begins_an_answer() -> None:
    scope = {**SCOPE, "path": "/v1/messages"}
    said = {"role": "assistant", "content": "The"}
    for turns in ([], [said, *CHAT["messages"]], [said, {"role": "system", "content": "x"}], "x"):
        assert not read_tags(scope, {"messages": turns}).continues
    assert read_tags(scope, {"messages": [said]}).continues


# ---------------------------------------------------------------- searches


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
    for path in (URL, RESPONSES, MESSAGES):
        service, response = await ask(path, {**CHAT, **change, "seed": 3, "max_tokens": 99})
        assert (response.status_code, len(service.handles)) == (200, 1), response.text
        spec = service.last.request
        assert (spec.strategy, spec.n, spec.seed) == (strategy, n, 3)
        assert (spec.max_path_tokens, spec.max_step_tokens) == (99, 96)
        assert (spec.prompt_ids, spec.problem.text) == ((1, 2, 3), "hi")


async def test_a_search_without_a_seed_draws_and_reports_one() -> None:
    service = FakeService()
    answers = [(await ask(URL, {**CHAT, "search": {}}, service))[1] for _ in range(2)]
    seeds = [answer.json()["flashedge"]["seed"] for answer in answers]
    assert seeds == [h.request.seed for h in service.handles.values()]
    assert seeds[0] != seeds[1]
    assert service.last.request.max_path_tokens == 512, "the pair's: the client sets no limit"


async def test_the_run_is_named_and_summed_up_beside_the_answer() -> None:
    service, response = await ask(URL, {**CHAT, "model": "bundled:beam-4"})
    body = response.json()
    assert response.headers["x-flashedge-run"] == service.last.id
    assert body["choices"][0]["message"]["content"] == "1 + 1 = 2.\n\n"
    about = body["flashedge"]
    assert (about["run_id"], about["answer"]) == (service.last.id, "2")
    assert about["votes"] == [{"answer": "2", "weight": 0.9, "count": 4}]
    assert about["usage"]["tree_tokens"] == 80


async def test_a_stream_has_the_summary_in_its_last_chunk() -> None:
    _, response = await ask(URL, {**CHAT, "model": "bundled:beam-4", "stream": True})
    sent = frames(response.text)
    assert sent[-1]["data"] == "[DONE]"
    chunks = [f["data"] for f in sent[:-1]]
    deltas = [c["choices"][0]["delta"] for c in chunks]
    steps = ["[1] 1 + 1 = 3.\n", "[2] 1 + 1 = 2.\n", "[1] score 0.125\n", "[2] score 0.875\n"]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == steps
    assert deltas[-2] == {"content": "1 + 1 = 2.\n\n"}
    assert [("flashedge" in c) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["flashedge"]["run_id"] == response.headers["x-flashedge-run"]


ENDINGS = (
    (RunFailed(error="engine died", code="engine_dead", hint="try again"), "engine died"),
    (RunCancelled(reason="by hand"), "by hand"),
)


@pytest.mark.parametrize(("ending", "message"), ENDINGS)
async def test_a_search_that_fails_within_the_stream_sends_an_error(
    ending: Any, message: str
) -> None:
    service = FakeService(autoplay=False)
    asked = asyncio.create_task(ask(URL, {**CHAT, "search": {}, "stream": True}, service))
    await asyncio.sleep(0.05)
    service.last.emit(RunStarted(config={}, queue_s=0.0), build_step(1, "1 + 1 = 2.\n\n"), ending)
    sent = frames((await asked)[1].text)
    (fault,) = [f["data"]["error"] for f in sent if "error" in f["data"]]
    assert message in fault["message"]
    assert not any("flashedge" in f["data"] for f in sent)


async def test_numbers_that_json_does_not_have_become_null() -> None:
    service = FakeService(autoplay=False)
    asked = asyncio.create_task(ask("/v1/solve", {"problem": "x", "stream": True}, service))
    await asyncio.sleep(0.02)
    started, *_, finished = script(service.last.request, "run-1")
    odd = NodeScored(node=NodeId(1), scores=(float("nan"), 0.5), score=float("inf"))
    service.last.emit(started, odd, finished)
    sent = frames((await asked)[1].text)
    scored = next(f["data"] for f in sent if f["event"] == "NodeScored")
    assert (scored["scores"], scored["score"]) == ([None, 0.5], None)


async def test_a_conversation_that_nobody_has_read_is_refused() -> None:
    service = FakeService()
    body = {**CHAT, "search": {}}
    search = ProtocolSearch(service, fake_pair(), body, name=PLAIN, tags=TAGS)
    prompt = SearchPrompt(token_ids=(1,), sampling=Sampling(), max_tokens=5)
    with pytest.raises(RequestError, match="can't follow this model's conversations"):
        search.start(prompt)
    assert not service.handles


# ---------------------------------------------------------------- choices and effort


def test_choices_are_the_answers_path_and_then_the_best() -> None:
    scores = {3: 0.2, 4: 0.9, 5: None, 6: 0.9}
    completions = [{"node": node, "score": score} for node, score in scores.items()]
    assert rank_paths(build_result(choice=3, completions=completions)) == [3, 4, 6, 5]
    sure = [
        {"node": n, "score": None, "confidence": c} for n, c in {3: 7.0, 4: 1.0, 5: 9.0}.items()
    ]
    assert rank_paths(build_result(choice=3, completions=sure)) == [3, 5, 4]
    assert rank_paths(build_result(choice=0, completions=[])) == [0]


@pytest.mark.parametrize(("choices", "ends_early"), [(1, True), (3, False)])
@pytest.mark.parametrize("effort", [None, "medium"])
async def test_a_vote_of_several_choices_completes_all_paths(
    choices: int, ends_early: bool, effort: str | None
) -> None:
    model = {"model": "bundled:self_consistency-8"}
    service, _ = await ask(URL, {**CHAT, **model, "reasoning_effort": effort, "n": choices})
    assert (service.last.request.early_exit is not None) == ends_early


@pytest.mark.parametrize(
    ("search", "body", "expected"),
    [
        ({}, {}, {}),
        ({}, {"reasoning_effort": "minimal"}, {"n": 2, "early_exit": True}),
        ({}, {"reasoning_effort": "low"}, {"n": 4, "early_exit": True}),
        ({}, {"reasoning_effort": "medium"}, {"n": 16, "early_exit": True}),
        ({}, {"reasoning_effort": "high"}, {"n": 16, "early_exit": False}),
        ({}, {"reasoning_effort": "xhigh"}, {"n": 64, "early_exit": False}),
        ({"n": 8}, {"reasoning_effort": "low"}, {"n": 8, "early_exit": True}),
        ({"early_exit": True}, {"reasoning_effort": "high"}, {"n": 16, "early_exit": True}),
        ({}, {"reasoning": {"effort": "low"}}, {"n": 4, "early_exit": True}),
        ({}, {"output_config": {"effort": "max"}}, {"n": 64, "early_exit": False}),
        ({}, {"reasoning": None, "reasoning_effort": None}, {}),
        ({}, {"reasoning_effort": "odd"}, {}),
        ({"strategy": "probed_cot"}, {"reasoning_effort": "high"}, {"strategy": "probed_cot"}),
    ],
)
def test_effort_chooses_what_the_search_leaves_open(
    search: dict[str, Any], body: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert apply_effort(search, body, fake_pair()) == expected


@pytest.mark.parametrize("setting", [True, False])
async def test_the_search_or_else_the_flag_or_else_the_setting_makes_it_deterministic(
    setting: bool,
) -> None:
    service = FakeService()
    flag, other = {"deterministic": not setting}, {"deterministic": setting}
    async with client_of(service, deterministic_searches=setting) as client:
        for path, body, expected in (
            ("/v1/solve", {"problem": "?"}, setting),
            ("/v1/solve", {"problem": "?", **flag}, not setting),
            (URL, {**CHAT, "search": {}}, setting),
            (URL, {**CHAT, "search": {}, **flag}, not setting),
            (URL, {**CHAT, "search": {}, "deterministic": None}, setting),
            (URL, {**CHAT, "search": other, **flag}, setting),
        ):
            assert (await client.post(path, json=body)).status_code == 200
            assert service.last.request.deterministic is expected


async def test_no_request_parses_the_registry(tmp_path: Path) -> None:
    """It takes some 40 ms, in which no stream of any run goes on."""
    config = load_config({}, {"FLASHEDGE_HOME": str(tmp_path)})
    load_pairs(config)
    before = parse_pairs.cache_info().misses
    transport = httpx.ASGITransport(create_app(FakeService(), config))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        found = (await client.get("/v1/models")).json()["data"]
        assert (await client.get("/v1/models/bundled")).status_code == 200
        assert (await client.get("/v1/models/unknown")).status_code == 404
        await client.post(URL, json=CHAT)
        await client.post("/v1/runs", json={"problem": "1 + 1?"})
    assert "bundled" in {model["id"] for model in found}
    assert parse_pairs.cache_info().misses == before


async def test_clients_find_the_models_and_the_size_of_their_context() -> None:
    settings = {"n_ctx": 1024}
    props = {"default_generation_settings": settings, "total_slots": 3, "model_path": "bundled"}
    async with client_of(FakeService(), max_running=3) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        names = [model["id"] for model in listed]
        assert names[0] == "bundled"
        assert {"bundled:beam", "bundled:mcts", "bundled:self_consistency"} <= set(names)
        assert (await client.get("/models")).json()["data"] == listed
        for name in (*names, "bundled:beam-16", "bundled:best-of-n-4"):
            model = (await client.get(f"/v1/models/{name}")).json()
            assert (model["id"], model["meta"]) == (name, settings)
            assert model["max_model_len"] == model["context_length"] == 1024
            assert model in listed or name not in names
            assert (await client.get("/props", params={"model": name})).json() == props
        assert (await client.get("/props")).json() == props
        assert (await client.get("/props", params={"model": "unknown"})).status_code == 404


ENABLED = "enabled"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_token_budget": 16}, "thinking_token_budget"),
        ({"thinking_token_budget": 0}, "thinking_token_budget"),
        ({"thinking_token_budget": 700, "max_tokens": 900}, "thinking_token_budget"),
        ({"thinking": {"type": ENABLED, "budget_tokens": 1024}, "max_tokens": 2048}, "thinking"),
        ({"thinking_token_budget": 511}, None),
        ({"thinking_token_budget": -1}, None),
        ({"thinking": {"type": ENABLED, "budget_tokens": 1999}, "max_tokens": 2000}, None),
        ({"thinking": {"type": "adaptive"}, "max_tokens": 2000}, None),
    ],
)
def test_a_search_obeys_a_budget_of_thinking_or_refuses_it(
    fields: dict[str, Any], param: str | None
) -> None:
    """The pair's paths have at most 512 tokens. Agents send a budget of all tokens but one."""
    with nullcontext() if param is None else pytest.raises(RequestError) as caught:
        ProtocolSearch(FakeService(), fake_pair(), {**CHAT, **fields}, name=PLAIN, tags=TAGS)
    if caught is not None:
        assert caught.value.param == param


# ---------------------------------------------------------------- where the result stands

TRAP = 'data: {x} "finish_reason":"stop" data: {'


async def send_all(path: str, kind: bytes, *bodies: bytes, status: int = 200) -> list[Any]:
    sent: list[Any] = []
    search: Any = SimpleNamespace(run_id="run-1", result=build_result())
    send = add_result(search, path, keep_in(sent))
    headers = [(b"content-type", kind), (b"content-length", b"9")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for body in bodies:
        await send({"type": "http.response.body", "body": body, "more_body": True})
    return sent


def encode_frame(data: Any, event: str = "") -> bytes:
    return f"{event}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


COMPLETED = {"response": {"output": TRAP, "instructions": TRAP}, "type": "response.completed"}
LASTS = [
    (URL, {"choices": [{"delta": {"content": TRAP}, "finish_reason": "stop"}]}),
    (RESPONSES, COMPLETED),
    (MESSAGES, {"type": "message_delta", "delta": {"text": TRAP}}),
]


@pytest.mark.parametrize(("path", "last"), LASTS)
async def test_the_result_stands_in_the_event_itself_whatever_texts_say(
    path: str, last: Any
) -> None:
    event = "" if path == URL else "event: x\n"
    first = encode_frame({"choices": [{"delta": {"content": TRAP}, "finish_reason": None}]}, event)
    head, before, body, after = await send_all(
        path, b"text/event-stream", first, encode_frame(last, event), encode_frame(last, event)
    )
    assert before["body"] == first
    found = json.loads(body["body"].decode().split("data: ", 1)[1])
    assert found.pop("flashedge")["run_id"] == "run-1"
    assert found == last
    assert after["body"] == encode_frame(last, event), "once"
    assert (b"x-flashedge-run", b"run-1") in head["headers"]
    assert not any(name == b"content-length" for name, _ in head["headers"])


async def test_a_whole_answer_has_it_and_an_error_does_not() -> None:
    body = json.dumps({"text": TRAP}).encode()
    _, sent = await send_all(URL, b"application/json", body)
    assert json.loads(sent["body"])["flashedge"]["answer"] == "2"
    head, sent = await send_all(URL, b"application/json", body, status=400)
    assert sent["body"] == body
    assert (b"content-length", b"9") in head["headers"]


# ---------------------------------------------------------------- pings

START = {"type": "http.response.start", "status": 200}
STREAM = {**START, "headers": [(b"content-type", b"text/event-stream")]}
WHOLE = {**START, "headers": [(b"content-type", b"application/json")]}
PIECE = {"type": "http.response.body", "body": b"x", "more_body": True}
END = {"type": "http.response.body", "body": b"", "more_body": False}


class Client:
    """Takes `send_s` for each message, and no second one meanwhile."""

    def __init__(self, send_s: float = 0.0) -> None:
        self.got: list[bytes] = []
        self.pinged = asyncio.Event()
        self._send_s, self._lock = send_s, asyncio.Lock()

    async def send(self, message: Any) -> None:
        assert not self._lock.locked(), "two at once"
        async with self._lock:
            await asyncio.sleep(self._send_s)
        if "body" in message:
            self.got.append(message["body"])
            if message["body"] == PING:
                self.pinged.set()


class Clock:
    """Stands for the module `time` where pings are sent. Moves by hand only."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """With a ping after 0.05 s. Pings sleep in real time, and ask this clock then."""
    monkeypatch.setattr("flashedge.api.sse.PING_S", 0.05)
    monkeypatch.setattr("flashedge.api.sse.time", clock := Clock())
    return clock


async def test_a_silent_stream_gets_comments_and_a_busy_one_and_a_whole_answer_do_not(
    clock: Clock,
) -> None:
    client, reader = Client(), Client()
    async with keep_alive(client.send) as send, keep_alive(reader.send) as send_whole:
        await send_whole(WHOLE)
        await send(STREAM)
        for _ in range(3):
            client.pinged.clear()
            clock.now += 0.05
            await client.pinged.wait()
        assert client.got == [PING] * 3
        await send_whole({**END, "body": b"{}"})
        assert reader.got == [b"{}"]
        client.got.clear()
        for _ in range(20):
            await send(PIECE)
            clock.now += 0.04
            await asyncio.sleep(0.01)
        assert client.got == [b"x"] * 20
        await send(END)
        clock.now += 1.0
        await asyncio.sleep(0.12)
    assert client.got[20:] == [b""], "nothing after the end"


async def test_a_slow_client_gets_one_thing_at_a_time(clock: Clock) -> None:
    client = Client(send_s=0.03)
    async with keep_alive(client.send) as send:
        await send(STREAM)
        for _ in range(5):
            clock.now += 1.0
            await asyncio.sleep(0.06)
            await send(PIECE)
    assert client.got.count(b"x") == 5
    assert PING in client.got


async def test_a_client_that_left_ends_the_comments(clock: Clock) -> None:
    tried = []
    pinged = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body") == PING:
            tried.append(message)
            pinged.set()
            raise OSError("gone")

    async with keep_alive(send) as sending:
        await sending(STREAM)
        clock.now += 1.0
        await pinged.wait()
        await asyncio.sleep(0.12)
    assert len(tried) == 1
