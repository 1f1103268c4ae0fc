"""Bad input: one clear OpenAI-shaped error each, nothing is started. Of bodies that arrive slowly,
the deadline grows with what has arrived, not with each piece."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from httpx import AsyncClient

from flashedge import errors
from flashedge.api.guard import Guard
from flashedge.config import load_config
from flashedge.engine.base import Health
from flashedge.types import MAX_SEED
from tests.support.api_rig import ask, client_of, keep_in, make_app
from tests.support.fake_protocols import FakeProtocols
from tests.support.fake_service import READY, FakeService

ASK = {"problem": "1 + 1?"}
CHAT = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}
TYPES = {401: "authentication_error", 403: "permission_error"}
TYPES |= dict.fromkeys((500, 503, 507), "server_error")


def check(response: Any, status: int, code: str | None = None, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    message = error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == TYPES.get(status, "invalid_request_error")
    assert isinstance(message, str)
    assert "\n" not in message
    assert code in (None, error["code"])
    assert param in (None, error["param"])
    return message


WRONG_VALUES: list[tuple[str, list[Any], str]] = [
    ("problem", ["", " \n\t "], "empty"),
    ("problem", [5], "string"),
    ("problem", [None], "either"),
    ("n", [0, -3, 1025, 10**30], "[1, 1024]"),
    ("n", ["4", 4.0, True], "integer"),
    ("seed", [-1, MAX_SEED + 1], str(MAX_SEED)),
    ("seed", [1.5], "integer"),
    ("temperature", [-0.1, 2.1], "[0, 2]"),
    ("temperature", ["hot", True], "number"),
    ("top_p", [0], "(0, 1]"),
    ("top_k", [-1], "integer"),
    ("aggregate", ["median"], "last, min, prod, mean"),
    ("selection", ["x"], "weighted"),
    ("step_entropy", [3.5], "[0, 3]"),
    ("step_entropy", ["high"], "number"),
    ("min_step_tokens", [0], "integer"),
    ("max_tokens", [0], "max_tokens is 0"),
    *((field, [0], field) for field in ("branching", "max_steps", "token_budget", "deadline_s")),
    ("baseline", [1], "boolean"),
    ("temprature", [1], "did you mean 'temperature'"),
    ("zzz", [1], "unknown field"),
]
SOLVE_CASES: list[tuple[dict[str, Any], str, str]] = [
    *(({**ASK, field: one}, field, words) for field, ones, words in WRONG_VALUES for one in ones),
    ({}, "problem", "either"),
    ({"problem": "x", "messages": []}, "problem", "either"),
    ({"messages": []}, "messages", "empty"),
    ({"messages": [{"role": "user", "content": ""}]}, "problem", "empty"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "user"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
]


@pytest.mark.parametrize("path", ["/v1/solve", "/v1/runs"])
@pytest.mark.parametrize(("body", "param", "words"), SOLVE_CASES, ids=lambda v: str(v)[:40])
async def test_a_wrong_field_of_a_search_is_named(
    path: str, body: dict[str, Any], param: str, words: str
) -> None:
    service, response = await ask(path, body)
    assert words in check(response, 400, "invalid_request", param)
    assert not service.handles


async def test_an_unknown_pair_or_strategy_is_not_found(client: AsyncClient) -> None:
    for param in ("pair", "strategy"):
        response = await client.post("/v1/solve", json={**ASK, param: "magic"})
        check(response, 404, "not_found", param)


RAW_CASES = [
    *((body, "empty") for body in (b"", b"   ")),
    (b"{", "malformed JSON"),
    (b'{"problem": "x",}', "line 1 column"),
    *((body, "JSON object") for body in (b"[1]", b'"x"', b"null")),
    (b'{"problem": "x", "temperature": NaN}', "NaN is not a JSON number"),
    (b'{"problem": "x", "temperature": Infinity}', "Infinity is not"),
    (b'{"problem": "x", "temperature": -Infinity}', "-Infinity is not"),
    (b'{"problem": "x", "temperature": 1e999}', "finite"),
    (b'{"problem": "\xff"}', "Unicode"),
    (b'{"problem": ' + b"[" * 100_000, "nested"),
    (b'{"problem": "x", "n": ' + b"9" * 5000 + b"}", "too long"),
]


@pytest.mark.parametrize("path", ["/v1/solve", "/v1/runs", "/v1/chat/completions"])
@pytest.mark.parametrize(("body", "words"), RAW_CASES, ids=lambda v: str(v)[:30])
async def test_malformed_json_is_refused(
    client: AsyncClient, path: str, body: bytes, words: str
) -> None:
    if path.endswith("completions"):
        body = body.replace(b'"problem": "x"', b'"model": "bundled", "messages": []')
    assert words in check(await client.post(path, content=body, headers=JSON), 400)


HALVES = [
    (b'"ok \\ud83d"', "ok \ufffd"),
    (b'"\\udE00 ok"', "\ufffd ok"),
    (b'"\\uDE00\\ud83d"', "\ufffd\ufffd"),
    (b'"\\ud83dx\\ud83d"', "\ufffdx\ufffd"),
    (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
    (b'"\\ud83d\\ud83d\\ude00"', "\ufffd\N{GRINNING FACE}"),
    (b'"\xed\xa0\xbd"', "\ufffd"),
    (b'"\xed\xa0\xbd\xed\xb8\x80"', "\N{GRINNING FACE}"),
    (b'"\\\\ud83d"', "\\ud83d"),
    ('"\N{GRINNING FACE} \\u00e9"'.encode(), "\N{GRINNING FACE} \u00e9"),
]
"""Texts in JSON that may hold half a surrogate pair, and what they mean."""


@pytest.mark.parametrize(("written", "text"), HALVES, ids=lambda v: ascii(v)[:40])
async def test_half_a_character_does_not_end_a_session(
    service: FakeService, client: AsyncClient, written: bytes, text: str
) -> None:
    """Every later turn of the session holds it too."""
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"):
        for model in ("bundled", "bundled:beam-4")[: 1 if path == "/v1/completions" else 2]:
            said = b'{"role": "user", "content": %b, "name": {%b: 1}}' % (written, written)
            body = b'{"model": "%b", "messages": [%b]}' % (model.encode(), said)
            answer = await client.post(path, content=body, headers=JSON)
            assert answer.status_code == 200, answer.text
            ((_, seen, _),) = service.protocols.asked
            service.protocols.asked.clear()
            assert seen["messages"] == [{"role": "user", "content": text, "name": {text: 1}}]
    for path in ("/v1/solve", "/v1/runs"):
        body = b'{"problem": %b}' % written
        assert (await client.post(path, content=body, headers=JSON)).status_code < 300
        assert service.last.request.problem.text == text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_other_content_types_are_refused(client: AsyncClient, kind: str) -> None:
    """A web page may send these across sites without asking; JSON it may not."""
    headers = {"content-type": kind}
    response = await client.post("/v1/solve", content=json.dumps(ASK), headers=headers)
    assert "application/json" in check(response, 415, "unsupported_media_type")


NOT_OBEYED = {
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "min_p": 0.1,
    "min_tokens": 3,
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "repetition_penalty": 1.1,
    "stop_token_ids": [3],
    "ignore_eos": True,
    "use_beam_search": True,
    "background": True,
    "repetition_detection": {"max_pattern_size": 4},
}
"""Fields of a chat that a search can't obey."""

CHAT_CASES: list[tuple[dict[str, Any], str | None]] = [
    *(({field: value}, field) for field, value in NOT_OBEYED.items()),
    ({"model": None, "search": {}}, "model"),
    ({"model": "", "search": {}}, "model"),
    ({"search": "beam"}, "search"),
    ({"search": {"strategy": "beam", "m": 1}}, "search.m"),
    ({"search": {"strategy": 3}}, "search.strategy"),
    ({"search": {"n": 0}}, "n"),
    ({"search": {"strategy": "divination"}}, None),
    ({"search": {"early_exit": {"odd": 1}}}, "early_exit"),
    ({"search": {}, "n": 17}, "n"),
    ({"model": "bundled:beam-4", "search": {}}, "search"),
    ({"model": "bundled:beam-0"}, "n"),
]


@pytest.mark.parametrize(("change", "param"), CHAT_CASES, ids=lambda v: str(v)[:40])
async def test_a_wrong_field_of_a_chat_is_named(change: dict[str, Any], param: str | None) -> None:
    by_search = {} if "model" in change else {"search": {"n": 2}}
    service, response = await ask("/v1/chat/completions", {**CHAT, **by_search, **change})
    is_unknown = change.get("model") == "" or param is None
    check(response, 404 if is_unknown else 400, param=param)
    assert not service.handles


async def test_fields_that_clients_send_by_habit_are_no_errors() -> None:
    habits: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "user": "me"}
    habits |= {"parallel_tool_calls": False, "service_tier": "auto", "presence_penalty": 0}
    habits |= {"frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": 1}
    habits |= {"modalities": ["text"], "verbosity": "low", "unknown": {"kept": True}}
    _, response = await ask("/v1/chat/completions", {**CHAT, **habits, "search": {"n": 2}})
    assert response.status_code == 200


UNKNOWN = ("gpt-4", "", "bundled:", "bundled:beam-", "bundled:9", "bundled:beam-4-x 2", "a:beam")


@pytest.mark.parametrize("model", [*UNKNOWN, "bundled:magic-4"])
async def test_an_unknown_model_is_not_found(client: AsyncClient, model: str) -> None:
    response = await client.post("/v1/chat/completions", json={**CHAT, "model": model})
    assert "bundled" in check(response, 404, "not_found", "model")
    if "magic" in model:
        assert "magic" in response.text
    if model:
        check(await client.get(f"/v1/models/{model}"), 404, "not_found")


async def test_a_wrong_path_or_query_is_refused(client: AsyncClient) -> None:
    await client.post("/v1/solve", json=ASK)
    missing = (f"/v1/runs{end}" for end in ("?before=run-9", "/run-9", "/run-9/events"))
    for path in ("/v1/nothing", *missing):
        check(await client.get(path), 404)
    check(await client.post("/v1/runs/run-9/cancel"), 404)
    check(await client.delete("/v1/runs/run-9"), 404)
    for query in ("?limit=0", "?limit=many", "?status=odd"):
        check(await client.get(f"/v1/runs{query}"), 400)
    for after in ("-1", "x"):
        check(await client.get(f"/v1/runs/run-1/events?after={after}"), 400)


LOCAL_HOSTS = ["localhost", "LOCALHOST:8642", "localhost.", "127.0.0.1:8642", "127.9.9.9"]
OTHER_HOSTS = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5"]
LOCAL_ORIGINS = ["http://localhost:3000", "http://127.0.0.1", "vscode-webview://abc"]
OTHER_ORIGINS = ["https://evil.example", "http://localhost.evil.example", "http://[::1", "null"]


@pytest.mark.parametrize(
    ("header", "accepted", "refused"),
    [
        ("host", [*LOCAL_HOSTS, "[::1]:8642"], [*OTHER_HOSTS, "[::1", ""]),
        ("origin", LOCAL_ORIGINS, OTHER_ORIGINS),
    ],
)
async def test_only_local_hosts_and_origins_are_accepted(
    client: AsyncClient, header: str, accepted: list[str], refused: list[str]
) -> None:
    for value in accepted:
        answer = await client.post("/v1/solve", json=ASK, headers={header: value})
        assert answer.status_code == 200, value
    for value in refused:
        answer = await client.post("/v1/solve", json=ASK, headers={header: value})
        check(answer, 403, f"bad_{header}")


async def test_the_address_itself_says_what_runs(client: AsyncClient) -> None:
    response = await client.get("/")
    assert response.headers["content-type"].startswith("text/plain")
    assert "Pair bundled: ready" in response.text
    assert f"base_url {str(client.base_url).rstrip('/')}/v1, model bundled" in response.text


ALLOWED = {"allowed_origins": "app://obsidian.md, http://localhost:3000/"}
SHARED = ("access-control-allow-origin", "access-control-allow-methods")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health", "/v1/nothing"])
async def test_a_browser_may_send_for_pages_that_the_user_allowed(path: str) -> None:
    wants = {"access-control-request-method": "POST"}
    wants |= {"access-control-request-headers": "authorization,content-type"}
    private = {**wants, "access-control-request-private-network": "true"}
    for settings in ({}, {"api_key": "geheim"}):
        async with client_of(FakeService(), **ALLOWED, **settings) as client:
            for origin in ("app://obsidian.md", "http://localhost:3000"):
                asked = await client.options(path, headers={**wants, "origin": origin})
                assert (asked.status_code, asked.content) == (204, b"")
                told = asked.headers
                assert (told["access-control-allow-origin"], told["vary"]) == (origin, "Origin")
                assert "POST" in told["access-control-allow-methods"]
                assert told["access-control-allow-headers"] == "authorization,content-type"
            asked = await client.options(path, headers={**private, "origin": "app://obsidian.md"})
            assert asked.headers["access-control-allow-private-network"] == "true"


async def test_allowed_pages_read_answers_and_errors() -> None:
    origin = {"origin": "app://obsidian.md"}
    async with client_of(FakeService(), **ALLOWED) as client:
        for path in ("/v1/models", "/v1/nothing"):
            answer = await client.get(path, headers=origin)
            assert answer.headers["access-control-allow-origin"] == origin["origin"]
        for body in (json.dumps(CHAT), '{"model": "x"}', "{"):
            answer = await client.post("/v1/chat/completions", content=body, headers=JSON | origin)
            assert answer.headers["access-control-allow-origin"] == origin["origin"]
    async with client_of(FakeService(), **ALLOWED, api_key="geheim") as client:
        check(answer := await client.get("/v1/models", headers=origin), 401, "invalid_api_key")
        assert answer.headers["access-control-allow-origin"] == origin["origin"]


STRANGE = ("app://obsidian.md.evil.example", "http://localhost:3001", "https://localhost:3000")


@pytest.mark.parametrize("settings", [{}, ALLOWED], ids=["none", "two"])
async def test_no_other_page_is_allowed(settings: dict[str, str]) -> None:
    """Those of this machine may still send, as before, but their browser hides the answer."""
    cases = [*((origin, 405) for origin in (*STRANGE, "", None))]
    cases += [(origin, 403) for origin in ("https://evil.example", "null")]
    async with client_of(FakeService(), **settings) as client:
        for origin, status in cases:
            headers = {"access-control-request-method": "POST"}
            headers |= {"origin": origin} if origin else {}
            asked = await client.options("/v1/chat/completions", headers=headers)
            assert asked.status_code == status, origin
            read = await client.get("/v1/models", headers=headers)
            assert not set(SHARED) & {*asked.headers, *read.headers}


async def test_an_allowed_page_can_not_rebind_the_daemons_name() -> None:
    headers = {"origin": "app://obsidian.md", "host": "evil.example"}
    async with client_of(FakeService(), **ALLOWED) as client:
        for method in ("GET", "OPTIONS"):
            check(await client.request(method, "/v1/models", headers=headers), 403, "bad_host")


async def test_every_path_but_health_needs_the_key() -> None:
    async with client_of(FakeService(), api_key="geheim", host="0.0.0.0") as client:
        wrong = ("", "Bearer", "Bearer wrong", "Basic geheim", "geheim", "Bearer geheim-ß")
        for headers in ({}, *({"authorization": value.encode()} for value in wrong)):
            for path in ("/v1/models", "/metrics", "/v1/nothing"):
                response = await client.get(path, headers=headers)
                check(response, 401, "invalid_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
        good = {"authorization": "bearer geheim"}
        elsewhere = {**good, "host": "gpu-box:8642"}  # on other addresses any name may be its own
        for sent in (good, {"x-api-key": "geheim"}, elsewhere):
            assert (await client.get("/v1/models", headers=sent)).status_code == 200
        wrong_key = await client.get("/v1/models", headers={"x-api-key": "wrong"})
        assert (wrong_key.status_code, (await client.get("/health")).status_code) == (401, 200)


def test_a_host_that_others_can_reach_needs_a_key() -> None:
    with pytest.raises(errors.ConfigError, match="API key"):
        make_app(FakeService(), host="0.0.0.0")


OVERFLOW = errors.ContextOverflow("900 tokens; 512 fit", param="messages")


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (errors.QueueFull("full", retry_after_s=4.2), 503, "queue_full"),
        (errors.EngineDead("gone"), 503, "engine_dead"),
        (errors.DaemonStopping.for_request(), 503, "stopping"),
        (errors.GenerationFailed("no"), 500, "generation_failed"),
        (OVERFLOW, 400, "context_length_exceeded"),
        (errors.StoreError("disk full"), 507, "store_error"),
        (RuntimeError("secret detail"), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["solve", "chat", "search"])
async def test_an_error_of_the_runtime_becomes_a_response(
    failure: Exception, status: int, code: str, kind: str, stream: bool
) -> None:
    service = FakeService(failure=failure, protocols=FakeProtocols(failure=failure))
    body = ASK if kind == "solve" else {**CHAT, "model": f"bundled{':beam-4' * (kind == 'search')}"}
    path = "/v1/solve" if kind == "solve" else "/v1/chat/completions"
    _, response = await ask(path, {**body, "stream": stream}, service)
    assert "secret" not in check(response, status, code)
    assert ("retry-after" in response.headers) == (status == 503)
    if code == "queue_full":
        assert response.headers["retry-after"] == "5"


async def test_health_answers_while_the_engines_load(
    service: FakeService, client: AsyncClient
) -> None:
    for state, code in (("starting", 503), ("failed", 503), ("ready", 200), ("degraded", 200)):
        service.state = replace(READY, state=state, detail="so")
        told = (response := await client.get("/health")).json()
        assert (response.status_code, told["status"], told["detail"]) == (code, state, "so")
    down = Health(state="dead", detail="it hung", restarts=1, attempt=2, retry_in_s=2.5)
    service.state = replace(READY, state="degraded", verifier=down)
    engines = (await client.get("/health")).json()["engines"]
    assert engines["generator"]["state"] == "ready"
    told = {"state": "dead", "detail": "it hung", "restarts": 1, "attempt": 2}
    assert engines["verifier"] == {**told, "retry_in_s": 2.5, "notice": None, "cards": None}


async def test_a_method_that_is_not_allowed_is_told_those_that_are(client: AsyncClient) -> None:
    for request_line, allowed in (
        ("PATCH /v1/runs/run-1", "DELETE, GET, HEAD"),
        ("PUT /v1/runs", "GET, HEAD, POST"),
        *((line, "POST") for line in ("GET /v1/solve", "OPTIONS /v1/solve")),
        ("PATCH /v1/chat/completions", "POST"),
        *((line, "GET, HEAD") for line in ("DELETE /v1/models", "PATCH /health")),
    ):
        response = await client.request(*request_line.split())
        check(response, 405, "method_not_allowed")
        assert response.headers["allow"] == allowed, request_line


async def test_openapi_describes_fields_and_errors_and_requires_a_problem(
    client: AsyncClient,
) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for operations in paths.values():
        for operation in operations.values():
            assert "error" in str(operation["responses"]["default"])
    schema = paths["/v1/solve"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"required": ["problem"]} in schema["oneOf"]
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]
    assert "deadline_s" in schema["properties"]
    chat = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert "search" in chat["schema"]["properties"]


# ---------------------------------------------------------------- slow bodies

TIMEOUT_S = 0.3


async def send_body(pieces: int, size: int, pause_s: float) -> tuple[list[Any], list[bytes]]:
    """What a Guard sends, and what it passes on of a body whose pieces come with pauses."""
    sent: list[Any] = []
    passed: list[bytes] = []
    left = iter(reversed(range(pieces)))

    async def receive() -> Any:
        await asyncio.sleep(pause_s)
        return {"type": "http.request", "body": b"x" * size, "more_body": next(left) > 0}

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        passed.append((await receive())["body"])

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/solve", "headers": headers}
    guard = Guard(answer, load_config({"max_request_bytes": 32 << 20}, {}))
    await guard(scope, receive, keep_in(sent))
    return sent, passed


@pytest.mark.parametrize("pause_s", [0.02, 60])
async def test_a_byte_now_and_then_or_none_does_not_keep_a_connection_open(
    monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    monkeypatch.setattr("flashedge.api.guard.BODY_TIMEOUT_S", TIMEOUT_S)
    began = time.monotonic()
    sent, passed = await send_body(10**9, 1, pause_s)
    assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + 1
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert passed == []


async def test_a_long_body_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.api.guard.BODY_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr("flashedge.api.guard.BODY_BYTES_PER_S", 1000)
    began = time.monotonic()
    assert await send_body(20, 100, 0.03) == ([], [b"x" * 2000])  # 3,333 bytes a second
    assert time.monotonic() - began > TIMEOUT_S


async def measure_piece(pieces: int) -> float:
    """Processor time of each piece of a body."""
    began = time.process_time()
    assert await send_body(pieces, 1000, 0) == ([], [b"x" * 1000 * pieces])
    return (time.process_time() - began) / pieces


async def test_a_piece_costs_the_same_however_many_came_before() -> None:
    early = min([await measure_piece(500) for _ in range(3)])
    assert await measure_piece(20_000) < 5 * early
