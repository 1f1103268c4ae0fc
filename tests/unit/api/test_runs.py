"""/v1/solve, /v1/runs and the daemon's own routes, in process."""

import asyncio
import json
import math
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from httpx import AsyncClient

from flashedge.api.bodies import parse_keep_alive
from flashedge.errors import RequestError
from flashedge.events import RunFailed, from_json, to_json
from flashedge.profiler.card_watch import CardUser
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.programs.estimates import ProgramEstimate, RunEstimate, Scheduling
from flashedge.types import MAX_SEED, Message, Problem, Sampling
from tests.support.api_rig import ask, client_of, frames, make_app
from tests.support.fake_service import READY, FakeService, script

ASK = {"problem": "1 + 1?", "n": 4, "seed": 7}


async def test_solve_answers_with_the_result(service: FakeService, client: AsyncClient) -> None:
    response = await client.post("/v1/solve", json=ASK)
    assert response.status_code == 200
    assert response.json() == service.last.object()
    assert response.headers["x-flashedge-run"] == "run-1"
    assert (await client.get("/v1/runs/run-1")).json() == response.json()
    assert service.last.cancelled == []


@pytest.mark.parametrize(("judges", "strategy"), [("steps", "beam"), ("answers", "best_of_n")])
async def test_a_pair_chooses_the_strategy_that_its_verifier_serves(
    judges: str, strategy: str
) -> None:
    service = FakeService()
    async with client_of(service, judges) as client:
        for given, chosen in (({}, "weighted"), ({"answers": "whole"}, "best")):
            await client.post("/v1/solve", json={**ASK, **given})
            assert service.last.request.strategy == strategy
            assert service.last.request.selection == chosen


async def test_every_field_reaches_the_spec_and_the_pair_fills_the_rest() -> None:
    service = FakeService()
    given: dict[str, Any] = {"strategy": "best_of_n", "n": 3, "branching": 2, "aggregate": "min"}
    given |= {"selection": "best", "max_step_tokens": 11, "max_steps": 12, "token_budget": 13}
    given |= {"deadline_s": 1.5, "baseline": True, "deterministic": False, "seed": MAX_SEED}
    given |= {"step_rule": "entropy", "step_entropy": 0.5, "min_step_tokens": 3, "pair": "bundled"}
    texts = [{"type": "text", "text": text} for text in "ab"]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": texts}]
    sampling: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "top_k": 5}
    body = {**given, **sampling, "messages": messages, "max_tokens": 14}
    assert (await ask("/v1/solve", body, service))[1].status_code == 200
    said = Message(role="system", content="Be brief."), Message(role="user", content="a\nb")
    problem, drawn = Problem(messages=said), Sampling(**sampling)
    assert service.last.request == Request(
        problem=problem, sampling=drawn, max_path_tokens=14, **given
    )
    nulls = dict.fromkeys([*body, "stream"])
    assert (await ask("/v1/solve", {**nulls, "problem": "p"}, service))[1].status_code == 200
    usual: dict[str, Any] = {"max_step_tokens": 96, "max_path_tokens": 512}
    usual |= {"step_entropy": 0.3, "min_step_tokens": 8, "pair": "bundled"}
    problem, drawn = Problem.from_text("p"), Sampling(temperature=0.7, top_p=0.95)
    assert service.last.request == Request(problem=problem, sampling=drawn, **usual)


async def test_rebase_with_early_exit_is_split_into_trees() -> None:
    wide = {"n": 64, "early_exit": True}
    asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (wide, {"width": 16}),
        ({**wide, "early_exit": {"policy": "every_step"}}, {"width": 16}),
        ({**wide, "options": {"temperature": 1}}, {"width": 16, "temperature": 1}),
        ({**wide, "options": {"width": 8}}, {"width": 8}),
        *((less, {}) for less in ({**wide, "early_exit": False}, {"n": 64}, {**wide, "n": 16})),
        ({"early_exit": True}, {}),
    ]
    for fields, options in asked:
        body = {"problem": "p", "strategy": "rebase", **fields}
        service, response = await ask("/v1/solve", body)
        assert (response.status_code, service.last.request.options) == (200, options), fields


async def test_solve_streams_numbered_events() -> None:
    service, response = await ask("/v1/solve", {**ASK, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    first, *rest = frames(response.text)
    assert first == {"event": "queued", "data": {"id": "run-1", **asdict(RunEstimate())}}
    expected = script(service.last.request, "run-1")
    assert [f["event"] for f in rest] == [type(e).__name__ for e in expected]
    assert [int(f["id"]) for f in rest] == [1, 2, 2, 3, 4, 5, 6, 7]  # Progress has no own number
    assert [f["data"] for f in rest] == [json.loads(json.dumps(to_json(e))) for e in expected]
    assert from_json(rest[-2]["data"]) == expected[-2]


async def test_resuming_after_any_event_sends_the_rest_once(client: AsyncClient) -> None:
    url = "/v1/runs/run-1/events"
    await client.post("/v1/solve", json=ASK)
    whole = frames((await client.get(url)).text)
    assert [int(f["id"]) for f in whole] == [1, 2, 3, 4, 5, 6, 7]
    for after in range(9):
        last = {"last-event-id": str(after)}
        answers = [await client.get(url, headers=last), await client.get(f"{url}?after={after}")]
        # a browser resumes at the same address: the header is newer than the query
        answers.append(await client.get(f"{url}?after=1", headers=last))
        assert [frames(answer.text) for answer in answers] == [whole[after:]] * 3


async def test_a_failed_and_a_cancelled_run_say_so(
    service: FakeService, client: AsyncClient
) -> None:
    service.autoplay = False
    failed, cancelled = (asyncio.create_task(client.post("/v1/solve", json=ASK)) for _ in range(2))
    await asyncio.sleep(0.02)
    told = {"error": "engine died", "code": "engine_dead", "hint": "wait"}
    service.handles["run-1"].emit(RunFailed(**told))
    for _ in range(2):  # idempotent
        answer = await client.post("/v1/runs/run-2/cancel")
        assert answer.json()["status"] == "cancelled"
    for asked, status, code in ((failed, 500, "internal_error"), (cancelled, 499, "cancelled")):
        response = await asked
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert service.last.cancelled == ["cancelled by request"]
    last = frames((await client.get("/v1/runs/run-1/events")).text)[-1]["data"]
    assert last == {"type": "RunFailed", **told}


async def test_runs_are_queued_listed_and_deleted() -> None:
    service = FakeService(autoplay=False, queue_limit=3)
    async with client_of(service) as client:
        for i in range(3):
            response = await client.post("/v1/runs", json=ASK)
            assert response.status_code == 202
            queued = {"id": f"run-{i + 1}", "status": "queued"}
            assert response.json() == {**queued, **asdict(RunEstimate(position=i))}
            assert response.headers["location"] == f"/v1/runs/run-{i + 1}"
        full = await client.post("/v1/runs", json=ASK)
        assert (full.status_code, full.headers["retry-after"]) == (503, "5")
        service.handles["run-1"].play()

        for query, ids, has_more in (
            ("limit=2", ["run-3", "run-2"], True),
            ("limit=2&before=run-2", ["run-1"], False),
            ("status=finished", ["run-1"], False),
            ("limit=1&contains=1 %2b 1", ["run-3"], True),
            ("contains=nuts", [], False),
        ):
            page = (await client.get(f"/v1/runs?{query}")).json()
            assert ([run["id"] for run in page["data"]], page["has_more"]) == (ids, has_more)
            assert [run["answer"] for run in page["data"] if run["id"] == "run-1"] in ([], ["2"])

        refused = await client.delete("/v1/runs/run-2")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert (await client.delete("/v1/runs/run-1")).json()["deleted"]
        assert (await client.get("/v1/runs/run-1")).status_code == 404
        streamed = await client.post("/v1/runs", json={**ASK, "stream": True})
        assert streamed.json()["error"]["param"] == "stream"


async def test_a_run_is_waited_for_until_its_end(service: FakeService, client: AsyncClient) -> None:
    service.autoplay = False
    name = (await client.post("/v1/runs", json=ASK)).json()["id"]
    asked = asyncio.create_task(client.get(f"/v1/runs/{name}", params={"wait_s": 30}))
    seen = await client.get(f"/v1/runs/{name}", params={"wait_s": 0.01})
    assert seen.json()["status"] == "queued", "the time is over"
    service.last.play()
    assert (await asked).json() == service.last.object()
    too_long = await client.get(f"/v1/runs/{name}", params={"wait_s": 31})
    assert too_long.status_code == 400


async def test_a_run_with_the_clients_id_is_created_once() -> None:
    service, name = FakeService(autoplay=False), "run-of-my-choice"
    for _ in range(2):
        _, response = await ask("/v1/runs", {**ASK, "id": name}, service)
        assert (response.status_code, response.json()["id"]) == (202, name)
    await ask("/v1/runs", {**ASK, "continues": name}, service)
    assert (service.continued, list(service.handles)) == ([name], [name, "run-1"])


async def test_each_change_of_the_place_and_now_and_then_of_the_start_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flashedge.api.runs.QUEUE_POLL_S", 0.005)
    service = FakeService(autoplay=False)
    told = [(2, None), (1, None), (0, None), (0, 30.0), (0, 29.0), (0, 28.0)]
    async with client_of(service) as client:
        for _ in range(2):
            await client.post("/v1/runs", json=ASK)
        asked = asyncio.create_task(client.post("/v1/solve", json={**ASK, "stream": True}))
        await asyncio.sleep(0.05)
        handle = service.last
        for position, start_s in told[1:]:
            handle.position, handle.starts_in_s = position, start_s
            await asyncio.sleep(0.2)
        run = (await client.get(f"/v1/runs/{handle.id}")).json()
        assert (run["position"], run["starts_in_s"]) == told[-1]
        handle.play()
        sent = frames((await asked).text)
    queued = [f["data"] for f in sent if f["event"] == "queued"]
    assert [(d["position"], d["starts_in_s"]) for d in queued] == told, "and no repeats"
    assert sent[len(told)]["event"] == "RunStarted"


async def test_status_tells_the_policy_and_the_programs() -> None:
    names = {"pair": "bundled", "key": "run-1", "client": "agent", "kind": "batch"}
    lengths = {"median_tokens": 80.0, "tail_tokens": 120.0, "left_tokens": 1400.0}
    standing = ProgramEstimate(
        **names, **lengths, place=0, has_started=False, waited_s=2.5, starts_in_s=12.0
    )
    running = replace(standing, key="run-2", place=None, has_started=True, starts_in_s=None)
    service = FakeService(scheduling=Scheduling(policy="fcfs", programs=(running, standing)))
    async with client_of(service) as client:
        scheduling = (await client.get("/v1/status")).json()["scheduling"]
        metrics = (await client.get("/metrics")).text
        paths = (await client.get("/openapi.json")).json()["paths"]
    programs = [asdict(running), asdict(standing)]
    boosts = {"boosts": [], "boost_running_s": 0.0, "boost_open_s": 0.0}
    assert scheduling == {"policy": "fcfs", "programs": programs, **boosts}
    assert 'flashedge:num_programs_waiting{kind="batch",pair="bundled"} 1.0' in metrics
    assert 'flashedge:num_programs_waiting{kind="chat",pair="bundled"} 0.0' in metrics
    reply = paths["/v1/status"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    described = reply["properties"]["scheduling"]["properties"]
    assert "tie" in described["policy"]["enum"]
    assert set(described["programs"]["items"]["properties"]) == set(asdict(standing))


async def test_a_run_is_repeated_with_what_was_decided_for_it(
    service: FakeService, client: AsyncClient
) -> None:
    await client.post("/v1/solve", json={**ASK, "deterministic": True, "early_exit": True})
    first = service.last.request
    response = await client.post("/v1/runs/run-1/repeat")
    assert response.status_code == 202
    assert response.json()["id"] == "run-2" == response.headers["x-flashedge-run"]
    assert (await client.post("/v1/runs/run-9/repeat")).status_code == 404
    again = service.last.request
    assert again.deterministic
    assert again.early_exit is not None
    assert again.early_exit.policy == "static", "the rule is in the request now"
    assert replace(again, early_exit=first.early_exit) == first


async def test_status_and_metrics_report_the_engines(
    service: FakeService, client: AsyncClient
) -> None:
    user = CardUser(card=0, pid=80, name="game", memory_bytes=5)
    tested = {"batch_invariant": True}
    service.state = replace(READY, self_test=tested, card_users=(user,))
    await client.post("/v1/solve", json=ASK)
    status = (await client.get("/v1/status")).json()
    counts = {"queued": 0, "running": 0}
    assert (status["pair"], status["runs"], status["self_test"]) == ("bundled", counts, tested)
    view = status["engines"]["generator"]["view"]
    assert (view["blocks_total"], view["cache_hits"]) == (64, None), "no prompt yet"
    assert status["engines"]["verifier"]["pid"] == 2
    pair = status["pairs"]["bundled"]
    assert (pair["engines"], pair["runs"]) == (status["engines"], status["runs"])
    assert pair["card_users"] == [asdict(user)]
    latency = status["latency"]["run"]
    assert (latency["requests"], set(latency["token_s"])) == (1, {"p50", "p90", "p99"})
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    for line in (
        'flashedge:runs_total{status="finished"} 1.0',
        'flashedge:kv_blocks_total{engine="generator",pair="bundled"} 64.0',
        'flashedge:engine_up{engine="verifier",pair="bundled"} 1.0',
    ):
        assert line in response.text


async def test_an_engine_that_does_not_answer_does_not_hang_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flashedge.api.system.VIEW_TIMEOUT_S", 0.05)
    async with client_of(FakeService(views_delay_s=60)) as client:
        status = (await client.get("/v1/status")).json()
        assert status["engines"]["generator"]["view"] is None
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize("fails", [False, True])
async def test_the_service_starts_and_stops_with_the_application(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    if fails:
        monkeypatch.setattr(service, "start", AsyncMock(side_effect=RuntimeError("no memory")))
    app = make_app(service)
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)
        assert service.life == ([] if fails else ["started"]), "it goes on without engines"
    assert service.life[-1] == "stopped"


# ---------------------------------------------------------------- how long a pair stays loaded


def test_keep_alive_is_seconds_or_a_text_with_units_and_nothing_else() -> None:
    seconds = {None: None, 0: 0.0, -1: -1.0, 2.5: 2.5, "90": 90.0, "-1": -1.0, "10m": 600.0}
    seconds |= {"1h30m": 5400.0, "250ms": 0.25, " 2d ": 172_800.0, "-5m": -300.0}
    assert {value: parse_keep_alive(value) for value in seconds} == seconds
    no_times = ["", "soon", "10 minutes", "m", "5mm", True, [], math.inf, math.nan, 10**400]
    for value in no_times:
        with pytest.raises(RequestError, match="keep_alive is") as error:
            parse_keep_alive(value)
        assert error.value.param == "keep_alive"


async def test_runs_and_protocols_take_keep_alive(
    service: FakeService, client: AsyncClient
) -> None:
    chat = {"model": "bundled", "messages": [{"role": "user", "content": "1 + 1?"}]}
    for path, body in (
        ("/v1/solve", {**ASK, "keep_alive": "10m"}),
        ("/v1/runs", ASK),
        ("/v1/chat/completions", {**chat, "keep_alive": -1}),
        ("/v1/chat/completions", {**chat, "model": "bundled:beam-2"}),
    ):
        assert (await client.post(path, json=body)).is_success, path
    refused = await client.post("/v1/chat/completions", json={**chat, "keep_alive": "soon"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "keep_alive")
    refused = await client.post("/v1/solve", json={**ASK, "keep_alive": []})
    assert refused.json()["error"]["param"] == "keep_alive"
    assert (await client.post("/v1/unload")).status_code == 202
    assert (await client.post("/v1/load")).status_code == 202
    assert service.kept_alive == [600.0, None, -1.0, None, 0]
    assert service.life[-1] == "loaded"
