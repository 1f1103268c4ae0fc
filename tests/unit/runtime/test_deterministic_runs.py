"""Deterministic runs in the service: what the engines are asked, what is stored, what repeats."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.base import ExtendRequest
from flashedge.engine.self_test_turns import UNTESTED, Turns
from flashedge.errors import Conflict, EngineDead, RequestError
from flashedge.runtime.records.repetition import RecordedRun, find_difference
from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.runtime.request.plan import pin_early_exit
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.kv.split import EngineRole
from tests.support.runtime_rig import BEAM, record_requests
from tests.support.service_rig import SELF_TEST, Rig, SelfTest, Serve, log_of

SPEC = replace(BEAM, n=8, deterministic=True)


async def record(rig: Rig, spec: Request) -> tuple[str, RecordedRun]:
    run = rig.service.submit(spec)
    await run.result()
    await asyncio.sleep(1.0)
    stored = rig.service.run(run.id)
    return run.id, RecordedRun.from_log(stored.object(), [e for _, e in await log_of(stored)])


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"strategy": "probed_cot", "n": 1}, {"strategy": "best_of_n", "judge": "answer"}]
)
async def test_all_requests_to_the_engines_carry_the_flag(
    rig: Rig, flag: bool, fields: dict[str, Any]
) -> None:
    asked = record_requests(rig.engines)
    await record(rig, replace(SPEC, deterministic=flag, **fields))
    assert asked
    assert all(request.deterministic is flag for request in asked)
    drafted = [r.continuation for r in asked if isinstance(r, ExtendRequest) and r.continuation]
    assert all(continuation.deterministic is flag for continuation in drafted)


async def test_the_record_tells_it_and_a_repetition_is_identical(rig: Rig) -> None:
    early = replace(SPEC, early_exit=ExitOptions())
    name, stored = await record(rig, early)
    result = rig.service.run(name).object()
    assert result["deterministic"] is True
    assert result["fingerprint"] == SELF_TEST["fingerprint"] == stored.fingerprint
    pinned = pin_early_exit(rig.service.run(name).plan)
    assert pinned.early_exit.names_policy, "no calibration changes it"
    _, again = await record(rig, pinned)
    assert find_difference(stored, again) is None
    _, other = await record(rig, replace(pinned, seed=SPEC.seed + 1))
    assert find_difference(stored, other) is not None


async def test_a_time_limit_of_grading_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    grader = rig.service._grader
    cluster = grader.cluster

    async def doubt(answers: Any) -> Any:
        grader.num_failures += 1
        return await cluster(answers)

    monkeypatch.setattr(grader, "cluster", doubt)
    for flag in (True, False):
        result = await rig.service.submit(replace(SPEC, deterministic=flag)).result()
        assert result["deterministic"] is False
        assert (result["fingerprint"] is not None) is flag, "a plain run has none"


def hold_self_test(may_end: asyncio.Event, found: dict[str, Any] = SELF_TEST) -> SelfTest:
    async def self_test(turns: Turns) -> dict[str, Any]:
        async with turns.take(EngineRole.GENERATOR):
            await may_end.wait()
        return found

    return self_test


async def test_it_waits_for_the_self_test_that_goes_on_behind(serve: Serve) -> None:
    may_end = asyncio.Event()
    rig = await serve(max_running=2, self_test=hold_self_test(may_end))
    assert rig.service.health().state == "ready"
    waiting = rig.service.submit(SPEC)
    other = await rig.service.submit(replace(SPEC, deterministic=False)).result()
    assert other["deterministic"] is None, "the self-test has found nothing yet"
    assert waiting.status == "queued"
    may_end.set()
    assert (await waiting.result())["deterministic"] is True


async def test_without_a_verdict_of_the_self_test_it_fails(serve: Serve) -> None:
    may_end = asyncio.Event()
    failed = {**UNTESTED, "failure": "it takes too long on this machine"}
    rig = await serve(max_running=1, self_test=hold_self_test(may_end, failed))
    waiting = rig.service.submit(SPEC)
    await asyncio.sleep(1)
    may_end.set()
    with pytest.raises(RequestError, match=r"did not finish \(it takes too long"):
        await waiting.result()
    async with asyncio.timeout(60):  # its place is free
        await rig.service.submit(replace(SPEC, deterministic=False)).result()
    with pytest.raises(RequestError, match=r"did not finish \(it takes too long"):
        rig.service.submit(SPEC)


async def test_a_self_test_in_which_an_engine_dies_begins_again(serve: Serve) -> None:
    begun = 0

    async def self_test(turns: Turns) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        async with turns.take(EngineRole.GENERATOR):
            if begun < 3:
                raise EngineDead("the generator engine is dead")
        return SELF_TEST

    rig = await serve(self_test=self_test)
    await rig.served.wait_tested()
    assert rig.service.health().self_test == SELF_TEST

    async def kill(turns: Turns) -> dict[str, Any]:
        raise EngineDead("the verifier engine is dead")

    again = await serve(self_test=kill)
    await again.served.wait_tested()
    found = again.service.health().self_test
    assert found == {**UNTESTED, "failure": "the verifier engine is dead"}


async def test_users_come_before_the_self_test_until_somebody_waits_for_it(serve: Serve) -> None:
    rig = await serve()
    busy = True

    async def read_views() -> dict[str, Any]:
        return {"generator": SimpleNamespace(running=int(busy), waiting=0)}

    rig.served.views = read_views  # type: ignore[method-assign,assignment]
    assert not await rig.served._is_free()
    busy = False
    assert await rig.served._is_free()
    busy, rig.served._testing = True, asyncio.create_task(asyncio.sleep(10))
    waiting = asyncio.create_task(rig.served.wait_tested())
    await asyncio.sleep(1)
    assert await rig.served._is_free(), "somebody waits"
    await waiting
    assert not await rig.served._is_free()


async def test_a_stop_ends_a_self_test_that_waits_for_its_turn(tmp_path: Path) -> None:
    async def self_test(turns: Turns) -> dict[str, Any]:
        turns.is_free = never_free
        async with turns.take(EngineRole.GENERATOR):
            return SELF_TEST

    async def never_free() -> bool:
        return False

    rig = Rig(tmp_path, self_test=self_test)
    await rig.service.start()
    await rig.service.stop()
    assert rig.pair.stopped


async def test_it_goes_on_only_with_the_same_bits(rig: Rig) -> None:
    name, _ = await record(rig, replace(SPEC, token_budget=60))
    run = rig.service.submit(replace(SPEC, token_budget=400), continues=name)
    await run.result()
    rig.served._self_test = {**SELF_TEST, "fingerprint": {"vllm": "another"}}
    with pytest.raises(Conflict, match="was computed by other models or engines"):
        rig.service.submit(replace(SPEC, token_budget=400), continues=name)
