"""The client against a transport that answers like the daemon, well or badly."""

import json
import sys
from subprocess import run
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge import errors, events
from flashedge.client import follow
from flashedge.client.follow import RetryPolicy
from flashedge.client.protocol import Frame, FrameReader, build_run_error, make_sendable
from flashedge.client.sync_client import Client, Queued
from flashedge.errors import DaemonError, FlashEdgeError, QueueFull, RequestError, RunInterrupted
from flashedge.types import Message
from tests.support.fake_daemon import FakeDaemon
from tests.support.hostile import acting_texts
from tests.support.story import STORY


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "ATTENDED", RetryPolicy(first_s=0.0, max_retries=3))


def client(daemon: httpx.BaseTransport | httpx.Response) -> Client:
    """A client of this daemon, or of one that answers this to everything."""
    if isinstance(daemon, httpx.Response):
        return client(httpx.MockTransport(lambda request: daemon))
    return Client("http://daemon", api_key="sesame", transport=daemon)


def make_reply(code: str, status: int, **fields: Any) -> httpx.Response:
    headers = {"Retry-After": "7"} if code == "queue_full" else {}
    error = {"message": "as described", "type": "x", "param": None, "code": code, **fields}
    return httpx.Response(status, json={"error": error}, headers=headers)


def test_solve_yields_what_is_known_of_a_run_that_waits_then_every_event() -> None:
    daemon = FakeDaemon()
    daemon.queued = [{"position": 1, "starts_in_s": 2.5}, {"position": 0, "starts_in_s": None}]
    with client(daemon) as c:
        got = list(c.solve({"problem": "p"}))
    waits = Queued(id="run-1", position=1, starts_in_s=2.5), Queued(id="run-1", position=0)
    assert got == [*((0, wait) for wait in waits), *enumerate(STORY, start=1)]
    assert daemon.bodies("/v1/solve") == [{"problem": "p", "stream": True}]
    assert daemon.requests[0].headers["authorization"] == "Bearer sesame"
    assert "x-flashedge-client" not in daemon.requests[0].headers


@pytest.mark.parametrize("cut", range(len(STORY)))
def test_a_lost_connection_is_taken_up_after_the_last_event(cut: int) -> None:
    daemon = FakeDaemon(cut_after=cut)
    with client(daemon) as c:
        got = [number for number, _ in c.solve({"problem": "p"})]
    assert got == list(range(len(STORY) + 1))
    assert daemon.requests[-1].headers["last-event-id"] == str(cut)


def test_run_that_the_daemons_end_interrupted() -> None:
    daemon = FakeDaemon(STORY[:5], cut_after=5, status="interrupted")
    with client(daemon) as c, pytest.raises(RunInterrupted, match="run-1 was interrupted") as e:
        list(c.solve({"problem": "p"}))
    assert "flashedge runs show run-1" in (e.value.hint or "")


def test_daemon_gone_for_good() -> None:
    class Gone(FakeDaemon):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                return super().answer(request)
            raise httpx.ConnectError("refused")

    went_away = pytest.raises(DaemonError, match="went away during run run-1")
    with client(Gone(cut_after=2)) as c, went_away as e:
        list(c.solve({"problem": "p"}))
    assert "flashedge runs show run-1" in (e.value.hint or "")


def test_closing_the_stream_closes_the_connection() -> None:
    closed = []

    class Watched(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield b'event: queued\ndata: {"id": "run-1", "position": 3}\n\n'
            yield b": ping\n\n"

        def close(self) -> None:
            closed.append(True)

    with client(httpx.Response(200, stream=Watched())) as c:
        stream = c.solve({"problem": "p"})
        assert next(stream) == (0, Queued(id="run-1", position=3))
        stream.close()  # type: ignore[attr-defined]
        assert closed


@pytest.mark.parametrize("data", ["{", "[]", '{"type": "NoSuchEvent"}', '{"type": "RunFinished"}'])
def test_what_cannot_be_read_is_one_clear_error(data: str) -> None:
    body = f'event: queued\ndata: {{"id": "r", "position": 0}}\n\ndata: {data}\n\n'.encode()
    with client(httpx.Response(200, content=body)) as c, pytest.raises(DaemonError):
        list(c.solve({"problem": "p"}))


@pytest.mark.parametrize("kind", errors.list_error_types(), ids=lambda k: k.__name__)
def test_each_error_comes_back_as_itself(kind: type[FlashEdgeError]) -> None:
    reply = make_reply(kind.code, kind.http_status, param="n", hint="do this")
    with client(reply) as c, pytest.raises(FlashEdgeError, match="as described") as e:
        list(c.solve({"problem": "p"}))
    assert (type(e.value), e.value.hint) == (kind, "do this")
    if isinstance(e.value, QueueFull):
        assert e.value.retry_after_s == 7.0
    else:
        assert e.value.param == "n"
    failed = events.RunFailed(error="as described", code=kind.code, hint="do this")
    assert type(build_run_error(failed)) is kind


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        (httpx.Response(500, text="Internal Server Error"), DaemonError, "HTTP 500"),
        (httpx.Response(418, json={"error": "a string"}), RequestError, "HTTP 418"),
        (httpx.Response(422, json=["x"]), RequestError, "HTTP 422"),
        (make_reply("invalid_api_key", 401), RequestError, "as described"),
        (httpx.Response(200, text="<html>"), DaemonError, "no JSON object"),
    ],
)
def test_answers_out_of_the_ordinary(
    response: httpx.Response, kind: type[FlashEdgeError], said: str
) -> None:
    with client(response) as c, pytest.raises(kind, match=said) as e:
        c.run("run-1")
    if response.status_code == 401:
        assert "FLASHEDGE_API_KEY" in (e.value.hint or "")


TRANSPORT_ERRORS = [
    e for e in vars(httpx).values() if isinstance(e, type) and issubclass(e, httpx.TransportError)
]


@pytest.mark.parametrize("error", TRANSPORT_ERRORS)
def test_every_exception_of_the_transport_is_translated(error: type[Exception]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error("x")

    for call in (lambda c: c.run("run-1"), lambda c: list(c.solve({"problem": "p"}))):
        with client(httpx.MockTransport(answer)) as c, pytest.raises(DaemonError):
            call(c)


def test_health_while_starting_is_no_error_but_nobody_or_another_on_the_port_is() -> None:
    with client(FakeDaemon(health="starting")) as c:
        assert c.health()["status"] == "starting"
    with Client("http://127.0.0.1:9") as c, pytest.raises(DaemonError, match="no daemon answers"):
        c.health()
    for body in ("<html>hello</html>", "[]", '{"ok": true}'):
        other = client(httpx.Response(200, text=body))
        with other as c, pytest.raises(DaemonError, match="other than FlashEdge"):
            c.health()


def test_scores_are_asked_for_without_half_characters() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["read"] is None
        return httpx.Response(200, json={"asked": json.loads(request.content)})

    steps = (MappingProxyType({"text": "ok \ud83d"}), "b")
    with client(httpx.MockTransport(answer)) as c:
        found = c.score(MappingProxyType({"problem": "caf\udce9", "steps": steps, "n": 2}))
    assert found == {"asked": {"problem": "caf�", "steps": [{"text": "ok �"}, "b"], "n": 2}}


def test_answers_that_need_a_loaded_pair_may_take_minutes() -> None:
    seen = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[request.url.raw_path] = request.extensions["timeout"]["read"]
        return make_reply("not_found", 404)

    with client(httpx.MockTransport(answer)) as c:
        for call in (
            lambda: next(c.solve({})),
            lambda: next(c.chat([], model="bundled")),
            lambda: c.repeat_run("a?\n\udce9"),
            lambda: c.repeat_run("../a"),
            lambda: c.submit({}),
            lambda: c.status(),
        ):
            with pytest.raises(errors.NotFound):
                call()
    assert seen.pop(b"/v1/status") < 60
    assert b"/v1/runs/a%3F%0A%3F/repeat" in seen, "a typed id stays one part of the path"
    assert sorted(seen.values()) == [600.0] * 4


def test_chat() -> None:
    daemon = FakeDaemon()
    with client(daemon) as c:
        pieces = list(c.chat([Message(role="user", content="hi")], model="bundled", seed=None))
    assert "".join(p.text for p in pieces) == "Hello\u2028 there"
    assert [p.finish for p in pieces if p.finish] == ["stop"]
    assert pieces[-1].usage == {"total_tokens": 5}
    assert "seed" not in daemon.bodies("/v1/chat/completions")[0]


def test_the_clients_bring_nothing_of_the_daemons_or_the_dashboards() -> None:
    bad = {"vllm", "torch", "fastapi", "transformers"}
    bad |= {"flashedge.api", "flashedge.runtime", "flashedge.search", "flashedge.tui", "textual"}
    clients = "flashedge.client.sync_client, flashedge.client.async_client"
    code = f"import sys, {clients}; assert not {bad} & set(sys.modules)"
    run([sys.executable, "-c", code], check=True)


values = st.recursive(
    acting_texts | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(acting_texts, parts, max_size=3),
)


@given(values, st.dictionaries(st.text(), st.lists(st.text() | st.integers())))
def test_any_body_can_be_encoded_and_valid_unicode_is_sent_as_it_is(
    value: object, valid: object
) -> None:
    json.dumps(make_sendable(value), ensure_ascii=False).encode()
    assert make_sendable(valid) == valid


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sse_frames_however_they_are_cut(size: int, end: str) -> None:
    text = ": ping\n\nid: 4\nevent: a\ndata: {\ndata:  é\u2028}\n\n"
    text += "data:x\n\nid: 9\n\ndata: unfinished"
    raw = text.replace("\n", end).encode()
    reader = FrameReader()
    got = [frame for i in range(0, len(raw), size) for frame in reader.read(raw[i : i + size])]
    assert got == [
        Frame(event="a", data="{\n é\u2028}", id="4"),
        Frame(event="message", data="x", id=None),
    ]
