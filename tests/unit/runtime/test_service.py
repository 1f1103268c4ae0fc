"""The service over simulated engines: the queue, cancels, the archive, one pair and two."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from flashedge import errors
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.engine.http_requests import PlainRequest
from flashedge.errors import ContextOverflow, EngineDead, FlashEdgeError, NotFound, QueueFull
from flashedge.events import RunCancelled, RunFinished, RunStarted
from flashedge.runtime.records.store import RunStore
from flashedge.runtime.run import ArchivedRun, Cancelled, Run
from flashedge.runtime.served_pair import ServedPair
from flashedge.runtime.service import Service
from flashedge.scheduling.programs.admission import Capacity
from flashedge.scheduling.programs.program import Caller
from flashedge.types import Problem
from scripts.lab.sim.pair import Faults
from tests.support.runtime_rig import BEAM, BEST, CONFIG, RecordingVerifier, prompt_of, sim_engines
from tests.support.service_rig import SLOW, Rig, Serve, SimPair, ended, log_of
from tests.unit.runtime.test_run import FailingStore

# ---------------------------------------------------------------- submit, queue


async def test_runs_go_one_after_the_other(rig: Rig) -> None:
    service = rig.service
    runs = [service.submit(replace(BEAM, seed=seed)) for seed in (1, 2, 3)]
    assert [run.estimate.position for run in runs] == [None, 0, 1]
    assert [run.status for run in runs] == ["queued"] * 3
    room = CONFIG.max_model_len - len(prompt_of(rig.engines, BEAM))
    assert 0 < runs[0].request.max_path_tokens <= room
    with pytest.raises(QueueFull):
        service.submit(BEAM)
    assert service.counts == {"queued": 2, "running": 1}
    assert len(rig.store.list_runs()) == 3, "what was refused is not stored"
    await asyncio.sleep(0.01)
    assert [run.status for run in runs] == ["running", "queued", "queued"]
    await ended(runs[0])
    assert [run.estimate.position for run in runs] == [None, None, 0]
    for run in runs:
        result = await run.result()
        assert (result["status"], len(result["completions"])) == ("finished", BEAM.n)
        assert result["usage"]["completion_tokens"] <= result["usage"]["tree_tokens"]
    await rig.assert_idle()
    assert service.submit(BEAM).estimate.position is None


async def test_wrong_requests_are_refused(rig: Rig) -> None:
    unsure = replace(BEAM, step_rule="entropy")
    refused: list[tuple[Any, type[FlashEdgeError], str]] = [
        (replace(BEAM, pair="other"), EngineDead, "'other' is not loaded"),
        (replace(BEAM, strategy="divination"), NotFound, "divination"),
        (replace(BEAM, problem=Problem.from_text("w1 " * 300)), ContextOverflow, "holds 256"),
        (replace(BEAM, prompt_ids=(1,) * 256), ContextOverflow, "256 tokens"),
        (replace(BEAM, strategy="mcts", options={"boost": "no"}), errors.RequestError, "boost"),
        (unsure, errors.RequestError, "can't end steps by the rule 'entropy'"),
    ]
    for spec, error, match in refused:
        with pytest.raises(error, match=match):
            rig.service.submit(spec)
    assert rig.store.list_runs() == []
    await rig.assert_idle()


async def test_a_problem_of_too_many_characters_is_refused_unread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = rig.pair.generator.codec
    monkeypatch.setattr(type(codec), "longest_token", 4)
    monkeypatch.setattr(codec, "encode_chat", None, raising=False)
    with pytest.raises(ContextOverflow, match=r"1025 characters.*1024 characters at most"):
        await rig.service.encode_prompt(replace(BEAM, problem=Problem.from_text("x" * 1025)))
    await rig.assert_idle()


async def test_a_long_problem_is_encoded_beside_the_event_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, done = asyncio.get_running_loop(), threading.Event()

    def encode_slowly(*_: object) -> tuple[int, ...]:
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(done.set)
        assert done.wait(5), "the loop is blocked"
        return (1, 2)

    monkeypatch.setattr(type(rig.pair.generator.codec), "encode_chat", encode_slowly)
    assert await rig.service.encode_prompt(BEAM) == (1, 2)
    await rig.assert_idle()


async def test_an_outcome_model_scores_each_whole_answer_once(serve: Serve) -> None:
    rig = await serve(family="sequence_classification")
    rig.pair.verifier = verifier = RecordingVerifier(rig.pair.verifier)
    with pytest.raises(errors.RequestError, match="whole answers") as caught:
        rig.service.submit(BEAM)
    assert "best_of_n" in str(caught.value.hint)
    assert rig.store.list_runs() == []
    spec = replace(BEST, answers="whole", selection="best", aggregate="prod")
    result = await rig.service.submit(spec).result()
    completions = result["completions"]
    assert sorted(r.steps for r in verifier.asked) == sorted((c["text"],) for c in completions)
    assert len(verifier.asked) == BEST.n
    best = max(completions, key=lambda c: c["score"])
    assert result["choice"] == best["node"]
    assert result["answer"] == best["text"].strip()
    assert [c["step_scores"] for c in completions] == [[c["score"]] for c in completions]
    assert result["trusted"] is None, "its score is no probability of being right"


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_run_is_cancelled_in_the_tick_of_its_submission(rig: Rig, which: int) -> None:
    runs = [rig.service.submit(replace(BEAM, seed=seed)) for seed in range(3)]
    runs[which].cancel("at once")
    runs[which].cancel("again")
    assert [await ended(run) for run in runs].count("cancelled") == 1
    assert [event for _, event in await log_of(runs[which])] == [RunCancelled(reason="at once")]
    assert rig.store.get(runs[which].id).status == "cancelled"  # type: ignore[union-attr]
    await rig.assert_idle()


async def test_stop_cancels_the_open_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.service.start()
    runs = [rig.service.submit(SLOW) for _ in range(3)]
    await asyncio.sleep(0.01)
    await rig.service.stop()
    assert [run.status for run in runs] == ["cancelled"] * 3
    assert rig.pair.stopped
    with pytest.raises(errors.DaemonStopping, match="the daemon stopped"):
        await runs[2].result()
    for refused in (lambda: rig.service.submit(BEAM), lambda: rig.service.check_queue("bundled")):
        with pytest.raises(errors.DaemonStopping, match="is stopping"):
            refused()
    await rig.assert_idle()
    again = Rig(tmp_path)
    assert [run["status"] for run in await again.service.runs()] == ["cancelled"] * 3
    again.store.close()


# ---------------------------------------------------------------- the archive


async def test_an_archived_run_equals_the_live_one(serve: Serve) -> None:
    rig = await serve(generator=Faults(die_after_steps=frozenset({70}), restart_s=None))
    runs = [rig.service.submit(BEAM), rig.service.submit(SLOW), rig.service.submit(SLOW)]
    assert await ended(runs[0]) == "finished"
    runs[2].cancel("enough")
    assert [await ended(run) for run in runs[1:]] == ["failed", "cancelled"]
    for run in runs:
        archived = rig.service.run(run.id)
        assert isinstance(archived, ArchivedRun)
        assert archived.object() == run.object()
        assert (archived.status, archived.estimate.position) == (run.status, None)
        assert (archived.request, archived.plan) == (run.request, run.plan)
        whole = await log_of(run)
        assert await log_of(archived) == whole
        for after in (1, len(whole) - 1, len(whole), 99):
            assert await log_of(archived, after) == await log_of(run, after) == whole[after:]
        archived.cancel("too late")
    assert await rig.service.run(runs[0].id).result() == await runs[0].result()
    for run, error in ((runs[1], EngineDead), (runs[2], Cancelled)):
        archived = rig.service.run(run.id)
        with pytest.raises(error) as live:
            await run.result()
        with pytest.raises(FlashEdgeError) as kept:
            await archived.result()
        told = [(str(e), e.code, e.hint) for e in (kept.value, live.value)]
        assert told[0] == told[1]


async def test_a_run_that_a_crash_cut_is_interrupted(serve: Serve, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.service.start()
    runs = [rig.service.submit(SLOW) for _ in range(2)]
    await asyncio.sleep(0.05)
    log = runs[0]._log.read()
    rig.store.close()  # as a kill does: nothing more is written
    again = await serve()
    for run in runs:
        found = again.service.run(run.id)
        assert found.status == "interrupted"
        cut = "the daemon stopped before the run was over"
        with pytest.raises(errors.RunInterrupted, match=cut):
            await found.result()
    assert await log_of(again.service.run(runs[0].id)) == log
    again.service.delete(runs[0].id)
    assert [run["id"] for run in await again.service.runs()] == [runs[1].id]
    for run in runs:
        run.cancel("the test is over")
        await ended(run)


async def test_runs_are_listed_and_deleted(rig: Rig) -> None:
    service = rig.service
    runs = [service.submit(replace(SLOW, seed=seed)) for seed in range(3)]
    await asyncio.sleep(0.01)
    assert [(s["id"], s["status"]) for s in reversed(await service.runs())] == [
        (run.id, "queued" if at else "running") for at, run in enumerate(runs)
    ]
    for run in runs[:2]:
        with pytest.raises(errors.Conflict, match="not over"):
            service.delete(run.id)
    await asyncio.gather(*(run.result() for run in runs))
    await asyncio.sleep(0)
    summaries = await service.runs(limit=2)
    assert len(summaries) == 2
    assert [s["id"] for s in await service.runs(before=summaries[-1]["id"])] == [runs[0].id]
    problem = summaries[0]["problem"].upper()
    assert await service.runs(text=problem, limit=2) == summaries
    assert await service.runs(text=problem, status="failed") == []
    assert all(s["answer"] is not None and s["tree_tokens"] for s in summaries)
    service.delete(runs[1].id)
    for unknown in (service.run, service.delete):
        with pytest.raises(NotFound):
            unknown(runs[1].id)
    assert {s["id"] for s in await service.runs(status="finished")} == {runs[0].id, runs[2].id}


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
async def test_a_run_outlives_a_failing_store(serve: Serve, tmp_path: Path, fails_at: int) -> None:
    rig = await serve(store=FailingStore(tmp_path / "runs.sqlite", fails_at))
    run = rig.service.submit(BEAM)
    assert await ended(run) == "finished"
    assert not run.stored
    assert rig.service.run(run.id) is run
    assert (await run.result())["status"] == "finished"
    (summary,) = await rig.service.runs() or [None]
    assert summary is None or summary["status"] == "finished"
    (_, first), *_, (_, last) = await log_of(run)
    assert (type(first), type(last)) == (RunStarted, RunFinished)
    rig.service.delete(run.id)
    with pytest.raises(NotFound):
        rig.service.run(run.id)
    assert await rig.service.runs() == []


@pytest.mark.parametrize("by", ["another run", "the end of the daemon"])
async def test_an_unstored_run_is_stored_later(serve: Serve, tmp_path: Path, by: str) -> None:
    """The disk is full while a run ends, and has room again afterwards."""
    store = FailingStore(tmp_path / "runs.sqlite", 5)
    rig = Rig(tmp_path, store=store)
    await rig.service.start()
    run = rig.service.submit(BEAM)
    assert await ended(run) == "finished"
    assert rig.service.run(run.id).object()["stored"] is False
    store.fails_at = 10**9
    if by == "another run":
        assert await ended(rig.service.submit(BEST)) == "finished"
        assert isinstance(rig.service.run(run.id), ArchivedRun)
    await rig.service.stop()
    kept = (await serve(store=RunStore(store.path))).service.run(run.id)
    assert await kept.result() == await run.result()
    assert await log_of(kept) == await log_of(run)


async def test_requests_of_a_run_say_who_asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, clients = rig.engines.generator, set()
    extend = generator.extend

    def note(request: ExtendRequest) -> AsyncGenerator[Chunk]:
        clients.add(request.client)
        return extend(request)

    monkeypatch.setattr(generator, "extend", note)
    caller = Caller(client="me", program="job of me")
    assert await ended(rig.service.submit(BEST, caller=caller)) == "finished"
    assert clients == {"me"}


# ---------------------------------------------------------------- two pairs


ROOM = Capacity(kv_tokens=1 << 20, max_running=8, useful_sequences=256)
NARROW = replace(ROOM, useful_sequences=1)


class PairOfRoom(ServedPair):
    room = ROOM

    async def _tune(self) -> None:
        await super()._tune()
        self.capacity = self.room


@asynccontextmanager
async def serve_two(home: Path, queue_limit: int = 8) -> AsyncIterator[Service]:
    """A service with the pairs "wide" and "narrow" loaded. The narrow one runs one search."""
    rig = Rig(home, load=False, loaded_pairs=2, max_running=8, queue_limit=queue_limit)

    def open_pair(name: str) -> ServedPair:
        engines = sim_engines()
        loaded = SimPair(engines.generator, engines.verifier)
        pair = PairOfRoom(replace(rig.served._pair, name=name), loaded, rig.config)
        pair.room = NARROW if name == "narrow" else ROOM
        return pair

    service = Service(rig.config, open_pair, None, rig.store, MathGrader())
    await service.start()
    async with AsyncExitStack() as used:
        for name in ("wide", "narrow"):
            await used.enter_async_context(service.use_pair(name))
        yield service
    await service.stop()


def submit(service: Service, pair: str, seed: int = 1) -> Run:
    return cast(Run, service.submit(replace(SLOW, pair=pair, seed=seed)))


async def assert_all_finish(*runs: Run) -> None:
    assert {await ended(run) for run in runs} == {"finished"}


async def test_each_pair_runs_as_many_searches_as_it_has_room_for(tmp_path: Path) -> None:
    async with serve_two(tmp_path) as service:
        wide = [submit(service, "wide", seed) for seed in range(4)]
        narrow = [submit(service, "narrow", seed) for seed in range(3)]
        states = service.pairs()
        assert (states["wide"].running, states["wide"].queued) == (4, 0)
        assert (states["narrow"].running, states["narrow"].queued) == (1, 2)
        assert service.counts == {"running": 5, "queued": 2}
        assert [run.estimate.position for run in narrow] == [None, 0, 1]
        programs = [(s.pair, s.key, s.place) for s in service.scheduling.programs]
        told = [("wide", run.id, None) for run in wide]
        told += [("narrow", run.id, place) for run, place in zip(narrow, (None, 0, 1), strict=True)]
        assert sorted(programs) == sorted(told)
        for state in states.values():
            assert set(await state.read_views()) == {"generator", "verifier"}
        await assert_all_finish(*wide, *narrow)


async def test_the_full_queue_of_one_pair_refuses_nothing_on_the_other(tmp_path: Path) -> None:
    async with serve_two(tmp_path, queue_limit=1) as service:
        runs = [submit(service, "narrow", seed) for seed in range(2)]
        with pytest.raises(QueueFull, match="1 runs are running and 1 are waiting"):
            service.check_queue("narrow")
        with pytest.raises(QueueFull):
            submit(service, "narrow", 3)
        service.check_queue("wide")
        runs += [submit(service, "wide", seed) for seed in range(2)]
        assert service.pairs()["wide"].running == 2
        await assert_all_finish(*runs)


async def test_engines_get_the_order_of_their_own_programs(tmp_path: Path) -> None:
    async with serve_two(tmp_path) as service:
        sent: dict[str, list[str]] = {"wide": [], "narrow": []}
        for name, pair in service._loader._loaded.items():
            rank = pair.rank_programs

            async def note(keys: list[str], name: str = name, rank: object = rank) -> None:
                sent[name] += keys

            pair.rank_programs = note  # type: ignore[method-assign, assignment]
        runs = {name: submit(service, name) for name in sent}
        await assert_all_finish(*runs.values())
        keys = {name: {run.id} for name, run in runs.items()}
        assert {name: set(told) for name, told in sent.items()} == keys


async def test_a_plain_request_joins_the_programs_of_its_pair(tmp_path: Path) -> None:
    async def abort() -> None: ...

    async with serve_two(tmp_path) as service:
        ask = PlainRequest(program="chat", pair="wide", max_tokens=8)
        with service._loader._plain.open(ask, abort):
            assert [s.pair for s in service.scheduling.programs] == ["wide"]
            run = submit(service, "narrow")
            assert [s.key for s in service.scheduling.programs] == ["chat", run.id]
        await assert_all_finish(run)
        assert BEAM.pair not in service.pairs()
