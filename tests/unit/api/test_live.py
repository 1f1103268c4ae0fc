"""The HTTP layer behind a real server: disconnects, streams in real time, raw bodies."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from flashedge.errors import EngineDead, QueueFull
from flashedge.events import RunFailed, RunFinished, RunStarted
from tests.support import openai_suite
from tests.support.api_rig import Live, make_app, post_bytes, serving, wait_until
from tests.support.fake_protocols import FakeProtocols
from tests.support.fake_service import FakeService, build_run_result, script
from tests.support.made_run import build_start, build_step

URL = "/v1/chat/completions"
ASK = {"problem": "1 + 1?", "n": 4}
CHAT = {"model": "bundled", "messages": [{"role": "user", "content": "hi"}]}
DISCONNECTED = ["the client disconnected"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    service = FakeService(autoplay=False, queue_limit=1000)
    with serving(make_app(service, max_request_bytes=4096), service) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(live: Live) -> None:
    live.service.handles.clear()
    live.service.protocols = FakeProtocols()


def send(live: Live, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection that has sent a request and reads nothing."""
    connection = live.connect()
    connection.sendall(post_bytes(path, body))
    return connection


def reset(connection: socket.socket) -> None:
    """Close with RST, as when the client's process is killed by the machine."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def queue_run(live: Live) -> str:
    """The address of a new run's events."""
    answer = httpx.post(f"{live.base_url}/v1/runs", json=ASK)
    assert answer.status_code == 202
    return f"{live.base_url}/v1/runs/{answer.json()['id']}/events"


@pytest.mark.parametrize("vanish", [socket.socket.close, reset])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [("/v1/solve", ASK), (URL, {**CHAT, "search": {}})])
def test_a_disconnect_cancels_the_run(
    live: Live, path: str, body: dict[str, Any], stream: bool, vanish: Any
) -> None:
    connection = send(live, path, {**body, "stream": stream})
    wait_until(lambda: live.service.handles)
    handle = live.service.last
    live.call(lambda: handle.emit(RunStarted(config={}, queue_s=0.0)))
    time.sleep(0.02)
    assert handle.cancelled == []
    vanish(connection)
    assert wait_until(lambda: handle.cancelled == DISCONNECTED) < 1
    wait_until(lambda: handle.followers == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("token_s", [0.01, 60])
def test_a_disconnect_ends_a_plain_request(live: Live, stream: bool, token_s: float) -> None:
    live.service.protocols.token_s = token_s
    live.service.protocols.words = ("x",) * 1000
    connection = send(live, URL, {**CHAT, "stream": stream})
    wait_until(lambda: live.service.protocols.open == 1)
    time.sleep(0.05)
    connection.close()
    assert wait_until(lambda: live.service.protocols.closed == 1) < 1
    assert live.service.protocols.open == 0


def test_a_detached_run_and_a_queued_run_survive_a_disconnect(live: Live) -> None:
    for body in ({**ASK, "stream": True, "detach": True}, {**ASK, "detach": True}):
        before = len(live.service.handles)
        connection = send(live, "/v1/solve", body)
        wait_until(lambda n=before: len(live.service.handles) > n)
        live.call(lambda: live.service.last.emit(RunStarted(config={}, queue_s=0.0)))
        reset(connection)
    queue_run(live)
    time.sleep(0.1)
    assert [h.cancelled for h in live.service.handles.values()] == [[], [], []]


def test_events_arrive_at_once_and_resume_after_a_disconnect(live: Live) -> None:
    """A watcher that disconnects cancels nothing."""
    url, handle = queue_run(live), live.service.last
    *events, last = script(handle.request, handle.id)
    with httpx.stream("GET", url) as response:
        lines = response.iter_lines()
        for event in events[:4]:
            live.call(lambda e=event: handle.emit(e))
            assert next(line for line in lines if line.startswith("data: "))
        assert handle.followers == 1
    wait_until(lambda: handle.followers == 0)
    assert handle.cancelled == []
    live.call(lambda: handle.emit(*events[4:]))
    with httpx.stream("GET", url, headers={"last-event-id": "3"}) as response:
        ids = (line for line in response.iter_lines() if line.startswith("id: "))
        told = [next(ids) for _ in events[4:]]
        live.call(lambda: handle.emit(last))
        assert [*told, *ids] == ["id: 4", "id: 5", "id: 6", "id: 7"]


def test_a_silent_stream_is_pinged(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.api.sse.PING_S", 0.05)
    with httpx.stream("POST", f"{live.base_url}/v1/solve", json={**ASK, "stream": True}) as answer:
        lines = answer.iter_lines()
        pings = 0
        while pings < 3:
            pings += next(lines) == ": ping"
        live.call(live.service.last.play)
        assert any("RunFinished" in line for line in lines)


def test_tokens_stream_one_by_one(live: Live) -> None:
    protocols = live.service.protocols
    protocols.token_s, protocols.words = 0.2, ("a", "b", "c", "d")
    with httpx.stream("POST", f"{live.base_url}{URL}", json={**CHAT, "stream": True}) as answer:
        words = (line for line in answer.iter_lines() if "content" in line)
        for _ in range(3):
            next(words)
            assert protocols.open == 1, "a word came only with the end of the answer"


def test_a_search_shows_its_steps_while_it_runs(live: Live) -> None:
    body = {**CHAT, "search": {"n": 2}, "stream": True}
    with httpx.stream("POST", f"{live.base_url}{URL}", json=body) as answer:
        lines = (line for line in answer.iter_lines() if "content" in line)
        next(lines)  # the role
        handle = live.service.last
        steps = [(f"step {node}\n\n", 0.5) for node in range(1, 4)]
        started, expanded, *_ = build_start({}, steps)
        live.call(lambda: handle.emit(started, expanded))
        for node in range(1, 4):
            live.call(lambda n=node: handle.emit(build_step(n, f"step {n}\n\n")))
            assert f"step {node}" in next(lines)
        end = build_run_result(handle.id, handle.request)
        live.call(lambda: handle.emit(RunFinished(result=end)))
        assert json.loads(next(lines)[6:])["choices"][0]["delta"]["content"] == "step 2\n\n"


# ---------------------------------------------------------------- raw bodies


def _exchange(live: Live, *parts: bytes) -> bytes:
    answer = b""
    with live.connect() as connection:
        with contextlib.suppress(OSError):  # the server may answer before it has read everything
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(OSError):
            while piece := connection.recv(65536):
                answer += piece
    return answer


CHUNK = b"400\r\n" + b"x" * 1024 + b"\r\n"


@pytest.mark.parametrize(
    ("header", "parts"),
    [(b"Transfer-Encoding: chunked", [CHUNK] * 6), (b"Content-Length: 999999999", [])],
    ids=["without end", "announced"],
)
def test_a_long_body_is_refused(live: Live, header: bytes, parts: list[bytes]) -> None:
    allowed = {"problem": "x" * 4000}
    assert httpx.post(f"{live.base_url}/v1/runs", json=allowed).status_code == 202
    head = b"POST /v1/solve HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n"
    answer = _exchange(live, head, *parts)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"request_too_large" in answer
    assert len(live.service.handles) == 1, "only the allowed run was started"


def test_a_disconnect_within_the_body_starts_nothing(live: Live) -> None:
    connection = live.connect()
    connection.sendall(post_bytes("/v1/solve", ASK)[:-5])
    time.sleep(0.05)
    reset(connection)
    time.sleep(0.05)
    assert not live.service.handles


def test_a_client_that_reads_nothing_is_disconnected(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashedge.api.sse.SEND_TIMEOUT_S", 0.2)
    live.service.protocols.words = ("x" * 10_000,) * 5000
    with send(live, URL, {**CHAT, "stream": True}):
        wait_until(lambda: live.service.protocols.open == 1)
        assert wait_until(lambda: live.service.protocols.closed == 1) >= 0.1


# ---------------------------------------------------------------- headers


def test_headers_without_end_are_refused(live: Live) -> None:
    """The connection closes once they are longer than the limit, whoever sends them."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    answer = _exchange(live, head, *[b"X-%d: " % i + b"x" * 4000 + b"\r\n" for i in range(40)])
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b"65536 bytes" in answer
    assert httpx.get(f"{live.base_url}/health").status_code == 200


def test_what_is_no_http_is_refused_as_json(live: Live) -> None:
    answer = _exchange(live, b"\x16\x03\x01 hello\r\n\r\n")
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("sends_one_request_before", [False, True])
def test_a_connection_whose_headers_do_not_arrive_is_closed(
    live: Live, monkeypatch: pytest.MonkeyPatch, sends_one_request_before: bool
) -> None:
    monkeypatch.setattr("flashedge.daemon.http_connection.HEADER_TIMEOUT_S", 0.3)
    with live.connect() as connection:
        if sends_one_request_before:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            assert b" 200 " in answer
        with contextlib.suppress(OSError):
            for byte in b"GET /health HTTP/1.1\r\nHost":
                time.sleep(0.03)
                connection.sendall(bytes([byte]))
        connection.settimeout(2)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(65536) == b""


def test_a_slow_answer_outlasts_the_time_for_headers(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashedge.daemon.http_connection.HEADER_TIMEOUT_S", 0.1)
    live.service.protocols.token_s, live.service.protocols.words = 0.1, ("a", "b", "c", "d")
    with httpx.Client(base_url=live.base_url) as client:
        for _ in range(2):
            answer = client.post(URL, json=CHAT)
            assert answer.json()["choices"][0]["message"]["content"] == "abcd"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/runs", "/metrics", "/v1/nothing"])
def test_head_answers_as_get_without_a_body(live: Live, path: str) -> None:
    head, get = (httpx.request(m, f"{live.base_url}{path}") for m in ("HEAD", "GET"))
    told = (get.status_code, get.headers["content-type"], b"")
    assert (head.status_code, head.headers["content-type"], head.content) == told


def test_head_of_a_stream_ends_at_once(live: Live) -> None:
    assert httpx.head(queue_run(live)).status_code == 200
    wait_until(lambda: live.service.last.followers == 0)


# ---------------------------------------------------------------- the openai package's exceptions

KEY = "sesame"


@pytest.fixture
def locked() -> Iterator[Live]:
    service = FakeService()
    with serving(make_app(service, api_key=KEY), service) as server:
        yield server


def test_a_wrong_key_raises_an_authentication_error(locked: Live) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai_suite.Clients(locked.base_url).openai.models.list()


def test_an_error_of_the_runtime_raises_its_openai_error(locked: Live) -> None:
    clients = openai_suite.Clients(locked.base_url, KEY)
    for failure in (QueueFull("16 wait", retry_after_s=1), EngineDead("it is gone")):
        locked.service.protocols = FakeProtocols(failure=failure)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                clients.chat("bundled", stream=stream)
            assert (caught.value.status_code, caught.value.code) == (503, failure.code)
            assert caught.value.response.headers["retry-after"]


def test_a_search_that_fails_within_the_stream_raises(locked: Live) -> None:
    locked.service.autoplay = False
    stream = openai_suite.Clients(locked.base_url, KEY).chat("bundled:beam-4", stream=True)
    next(iter(stream))
    failed = RunFailed(error="the generator died twice", code="engine_dead")
    locked.call(lambda: locked.service.last.emit(RunStarted(config={}, queue_s=0.0), failed))
    with pytest.raises(openai.APIError, match="died twice"):
        list(stream)
