"""/v1/score over the real service and a simulated verifier, on virtual time."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import pytest_asyncio

from flashedge.api.app import create_app
from flashedge.engine.base import ScoreRequest, StepScores
from flashedge.engine.http_requests import MAX_CHOICES, PlainRequest
from flashedge.search.aggregates import AGGREGATES, aggregate
from flashedge.search.step_rules import split_steps
from flashedge.types import THINK_CLOSE, THINK_OPEN, Problem
from scripts.lab.sim.clock import VirtualTimePolicy
from scripts.lab.sim.pair import Faults
from tests.support.api_rig import client_of, keep_in
from tests.support.fake_service import FakeService
from tests.support.service_rig import Rig
from tests.unit.api.test_bad_input import check

PROBLEM = "What is 12 + 7?"
RIGHT = "First 12 + 7.\n\nThat is 19.\n\nSo 19."
WRONG = "It is 18."
ASK = {"problem": PROBLEM, "solution": [RIGHT, WRONG, RIGHT + " Yes."]}
PAIRS = {"text_1": PROBLEM, "text_2": [RIGHT, WRONG]}


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


@contextlib.asynccontextmanager
async def serve(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(rig.service, rig.config)
    await rig.service.start()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await rig.assert_idle()
    await rig.service.stop()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest_asyncio.fixture
async def client(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(rig) as client:
        yield client


async def compute_scores(rig: Rig, *steps: str) -> StepScores:
    return await rig.engines.verifier.score(
        ScoreRequest(problem=Problem.from_text(PROBLEM), steps=steps)
    )


class Recorded:
    """The requests that reach a rig's verifier, which answers them after `wait`."""

    def __init__(self) -> None:
        self.requests: list[ScoreRequest] = []
        self.began, self.wait = asyncio.Event(), asyncio.Event()


@pytest.fixture
def recorded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded, score = Recorded(), rig.engines.verifier.score

    async def record(request: ScoreRequest) -> StepScores:
        recorded.requests.append(request)
        recorded.began.set()
        await recorded.wait.wait()
        return await score(request)

    monkeypatch.setattr(rig.engines.verifier, "score", record)
    return recorded


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_every_step_has_the_score_of_the_verifier(
    rig: Rig, client: httpx.AsyncClient, path: str
) -> None:
    found = (await client.post(path, json=ASK)).json()
    assert (found["object"], found["model"], found["aggregate"]) == ("list", "bundled", "last")
    data = found["data"]
    for at, (one, text) in enumerate(zip(data, ASK["solution"], strict=True)):
        expected = await compute_scores(rig, *split_steps(text))
        assert (one["index"], one["object"], one["steps"]) == (at, "score", [*split_steps(text)])
        assert (one["step_scores"], one["score"]) == ([*expected.scores], expected.scores[-1])
        assert one["tokens"] == expected.tokens
    assert data[0]["score"] != data[1]["score"]
    tokens, cached = (sum(one[name] for one in data) for name in ("tokens", "cached_tokens"))
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, **details}


@pytest.mark.parametrize("how", AGGREGATES)
async def test_the_whole_is_scored_as_a_search_would(client: httpx.AsyncClient, how: str) -> None:
    asked = {"problem": PROBLEM, "solution": RIGHT, "aggregate": how}
    one = (await client.post("/v1/score", json=asked)).json()["data"][0]
    assert len(set(one["step_scores"])) == 3
    assert one["score"] == aggregate(one["step_scores"], how)


async def test_given_steps_are_not_split(rig: Rig, client: httpx.AsyncClient) -> None:
    steps = ["a\n\nb", "c"]
    asked = {"problem": PROBLEM, "steps": steps}
    one = (await client.post("/v1/score", json=asked)).json()["data"][0]
    assert one["steps"] == steps
    assert one["step_scores"] == list((await compute_scores(rig, *steps)).scores)


async def test_a_judge_of_answers_gives_one_score(tmp_path: Path) -> None:
    rig = Rig(tmp_path, family="sequence_classification")
    async with serve(rig) as client:
        expected = list((await compute_scores(rig, RIGHT)).scores)
        for asked in ({"solution": RIGHT}, {"steps": list(split_steps(RIGHT))}):
            response = await client.post("/v1/score", json={"problem": PROBLEM, **asked})
            [one] = response.json()["data"]
            assert (one["steps"], one["step_scores"], [one["score"]]) == (
                [RIGHT],
                expected,
                expected,
            )


async def test_what_a_pair_judges_of_a_thinking_model(tmp_path: Path) -> None:
    """Its answer alone, where its searches judge that."""
    rig = Rig(tmp_path)
    rig.served._pair = replace(rig.served._pair, judge="answer")
    texts = [f"<think>Hm.\n\nWell.</think>{RIGHT}", "<think>Hm.\n\nWell."]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(rig.engines.generator.codec), "think_tags", (THINK_OPEN, THINK_CLOSE))
        async with serve(rig) as client:
            asked = {"problem": PROBLEM, "solution": texts}
            answered, unfinished = (await client.post("/v1/score", json=asked)).json()["data"]
    assert answered["steps"] == list(split_steps(RIGHT))
    assert (unfinished["steps"], unfinished["step_scores"], unfinished["score"]) == ([], [], 0.0)


async def test_a_request_is_one_program_that_the_daemon_counts(
    rig: Rig, client: httpx.AsyncClient, recorded: Recorded
) -> None:
    asked = {**ASK, "deterministic": True, "priority": 1, "keep_alive": "10m"}
    headers = {"X-FlashEdge-Client": "me", "X-FlashEdge-Program": "filter"}
    task = asyncio.create_task(client.post("/v1/score", json=asked, headers=headers))
    await asyncio.sleep(1)
    [program] = rig.service.scheduling.programs
    assert (program.key, program.client, program.kind) == ("filter of me", "me", "batch")
    asked_for = {(request.program, request.deterministic) for request in recorded.requests}
    assert asked_for == {(program.key, True)}
    assert rig.service.idle.idle_s == 0, "it is in use"
    recorded.wait.set()
    assert (await task).status_code == 200
    assert rig.service.scheduling.programs == ()
    assert rig.service.idle.idle_s > 0
    metrics = rig.service.metrics.render()
    assert "flashedge:solutions_scored_total 3.0" in metrics
    assert "flashedge:chats_total{" not in metrics


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("comes_back", [True, False])
async def test_work_that_a_dead_engine_lost_is_done_again(tmp_path: Path, comes_back: bool) -> None:
    faults = Faults(die_after_steps=frozenset({1}))
    rig = Rig(tmp_path, verifier=faults if comes_back else replace(faults, restart_s=None))
    async with serve(rig) as client:
        response = await client.post("/v1/score", json=ASK)
        if not comes_back:
            check(response, 503, "engine_dead")
            return
        assert rig.engines.verifier.health().restarts == 1
        expected = await compute_scores(rig, WRONG)
        assert response.json()["data"][1]["step_scores"] == list(expected.scores)


async def test_a_solution_that_is_too_long_is_named(rig: Rig, client: httpx.AsyncClient) -> None:
    long = "word " * 300
    response = await client.post("/v1/score", json={**ASK, "solution": [RIGHT, long]})
    message = check(response, 400, "context_length_exceeded", "solution[1]")
    assert "307 tokens, the model's limit is 256" in message
    assert "shorten solution[1]" in message
    for asked, param in (
        ({"problem": PROBLEM, "solution": long}, "solution"),
        ({"problem": PROBLEM, "steps": [long]}, "steps"),
        ({"problem": long, "solution": RIGHT}, "problem"),
    ):
        response = await client.post("/v1/score", json=asked)
        check(response, 400, "context_length_exceeded", param)


async def test_a_client_that_leaves_ends_its_requests(rig: Rig, recorded: Recorded) -> None:
    app = create_app(rig.service, rig.config)
    await rig.service.start()
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": json.dumps(ASK).encode()})
    sent: list[Any] = []
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers}
    scope |= {"query_string": b"", "client": ("127.0.0.1", 1)}
    recorded.wait.set()
    task = asyncio.create_task(app(scope, messages.get, keep_in(sent)))
    await recorded.began.wait()
    messages.put_nowait({"type": "http.disconnect"})
    await task
    assert sent[0]["status"] == 499
    await rig.assert_idle()
    await rig.service.stop()


@pytest.mark.usefixtures("recorded")
async def test_a_daemon_that_stops_says_so(rig: Rig) -> None:
    async with serve(rig) as client:
        task = asyncio.create_task(client.post("/v1/score", json=ASK))
        await asyncio.sleep(1)
        await rig.service._plain.stop()
        check(await task, 503, "stopping")


async def test_too_much_at_once_is_refused_for_now(rig: Rig, client: httpx.AsyncClient) -> None:
    ask = PlainRequest(program="other", pair="bundled", choices=MAX_CHOICES - 2, max_tokens=1)
    with rig.service._plain.open(ask, AsyncMock()):
        response = await client.post("/v1/score", json=ASK)
        check(response, 503, "queue_full")
        assert int(response.headers["retry-after"]) >= 1


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"solution": WRONG}, "problem", "missing"),
    ({"problem": " ", "solution": WRONG}, "problem", "empty"),
    ({"problem": PROBLEM}, "solution", "either solution or steps"),
    ({"problem": PROBLEM, "solution": WRONG, "steps": [WRONG]}, "solution", "either"),
    ({"problem": PROBLEM, "solution": ""}, "solution", "empty"),
    ({"problem": PROBLEM, "solution": []}, "solution", "empty"),
    ({"problem": PROBLEM, "solution": [WRONG, "\n"]}, "solution[1]", "empty"),
    ({"problem": PROBLEM, "solution": 5}, "solution", "a text or a list of texts"),
    ({"problem": PROBLEM, "solution": [WRONG, None]}, "solution", "a text or a list of texts"),
    ({"problem": PROBLEM, "solution": [WRONG] * 257}, "solution", "at most 256"),
    ({"problem": PROBLEM, "steps": []}, "steps", "empty"),
    ({"problem": PROBLEM, "steps": [WRONG, ""]}, "steps[1]", "empty"),
    ({"problem": PROBLEM, "steps": [5]}, "steps[0]", "string"),
    ({"problem": PROBLEM, "solution": WRONG, "aggregate": "max"}, "aggregate", "last, min"),
    ({"problem": PROBLEM, "solution": WRONG, "model": "bundled:beam-4"}, "model", "a search"),
    ({"problem": PROBLEM, "solution": WRONG, "keep_alive": "soon"}, "keep_alive", "soon"),
    ({"problem": PROBLEM, "solution": WRONG, "text_1": "x"}, "text_1", "unknown field"),
    ({"problem": PROBLEM, "solutions": [WRONG]}, "solutions", "did you mean 'solution'"),
]


@pytest.mark.parametrize(("body", "param", "message"), BAD)
async def test_bad_input(
    client: httpx.AsyncClient, body: dict[str, Any], param: str, message: str
) -> None:
    response = await client.post("/v1/score", json=body)
    assert message in check(response, 400, "invalid_request", param)


async def test_a_pair_that_is_not_here(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/score", json={**ASK, "model": "other"})
    assert "this daemon serves 'bundled'" in check(response, 404, "not_found", "model")


# ---------------------------------------------------------------- vLLM's own form


async def test_pairs_of_texts_go_to_vllms_handler() -> None:
    service = FakeService()
    sent = [("/v1/score", {**PAIRS, "model": "bundled"})]
    sent += [("/score", {"queries": "a", "documents": ["b"]})]
    async with client_of(service, "answers") as client:
        for path, body in sent:
            await client.post(path, json=body)
    assert [(path, body) for path, body, _ in service.protocols.asked] == sent


async def test_a_verifier_of_steps_refuses_pairs_of_texts(client: httpx.AsyncClient) -> None:
    message = check(await client.post("/v1/score", json=PAIRS), 400, "invalid_request", "text_1")
    assert "'bundled' scores no pairs of texts" in message
    assert "send problem and solution, or steps" in message
    async with client_of(FakeService(), "nothing") as alone:
        message = check(await alone.post("/v1/score", json=PAIRS), 400, "invalid_request", "model")
    assert "'bundled' has no verifier" in message
    searched = {**PAIRS, "model": "bundled:beam-4"}
    check(await client.post("/v1/score", json=searched), 400, "invalid_request", "model")
