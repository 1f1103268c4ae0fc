"""The engine over its processes, with fake processes in virtual time, and its batch when short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.step_record import RECORD_BYTES, StepRecord
from flashedge.engine.vllm.process import restarts
from flashedge.engine.vllm.process.live_process import ProcessEnded
from flashedge.engine.vllm.process.restarts import BACKOFF_S, STABLE_S, EngineProcess, halve_batch
from flashedge.errors import EngineDead, EngineError
from flashedge.models.memory.engine_memory import PASS_SIZES, choose_graph_sizes

MODEL: dict[str, Any] = {"model": Path("model"), "dtype": "float32", "max_model_len": 256}
BATCH: dict[str, Any] = {"max_num_seqs": 64, "max_batched_tokens": 4096}
OPTIONS = EngineOptions(name="generator", **MODEL, kv_bytes=64 << 20, **BATCH)
SHORT = MemoryError("no memory for the logits")


class FakeProcess:
    """Stands for `LiveProcess`. It starts in two seconds, or fails with the next of `failures`."""

    all: list[FakeProcess]
    failures: list[Exception | None]

    def __init__(self, options: EngineOptions, on_end: Callable[[], None]) -> None:
        self.options, self._on_end = options, on_end
        self.record = StepRecord(bytearray(RECORD_BYTES))
        self.llm: Any = None
        self.failed_requests = False
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Any = 7
        self.made_at = asyncio.get_running_loop().time()
        FakeProcess.all.append(self)

    @property
    def pid(self) -> int:
        return len(FakeProcess.all)

    async def start(self, on_stage: Callable[[str], None]) -> dict[str, Any]:
        on_stage("loading the weights")
        await asyncio.sleep(2.0)
        if FakeProcess.failures and (failure := FakeProcess.failures.pop(0)):
            raise failure
        self.llm = SimpleNamespace(errored=False)
        return {"block_bytes": 1024, "mechanism": "os"}

    def describe_end(self, error: BaseException | None = None) -> str:
        return str(error or self.record.fault or "killed")

    def note_end(self) -> None: ...

    def fail_requests(self) -> None:
        self.failed_requests = True

    async def shut_down(self) -> None:
        self.llm = None

    async def call(self, method: str, *args: Any) -> Any:
        self.calls.append((method, *args))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def die(self, error: Exception | None = None) -> None:
        if error is not None:
            self.record.note_fault(error)
        self._on_end()


@pytest.fixture(autouse=True)
def fake_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeProcess.all, FakeProcess.failures = [], []
    monkeypatch.setattr(restarts, "LiveProcess", FakeProcess)


async def do_nothing() -> None: ...


async def start_engine(
    options: EngineOptions = OPTIONS, prepare: Callable[[], Awaitable[None]] = do_nothing
) -> EngineProcess:
    engine = EngineProcess(options, prepare)
    await engine.start()
    return engine


async def start_and_kill(*failures: Exception) -> EngineProcess:
    """An engine whose process has died, and whose next starts fail so."""
    engine = await start_engine()
    FakeProcess.failures = list(failures)
    FakeProcess.all[0].die()
    return engine


def list_sequences() -> list[int]:
    return [process.options.max_num_seqs for process in FakeProcess.all]


async def test_only_an_end_of_the_process_fails_a_call_and_no_answer_is_an_answer() -> None:
    engine = await start_engine()
    FakeProcess.all[0].answer = None
    assert await engine.call("rank_programs", []) is None
    FakeProcess.all[0].answer = ProcessEnded()
    with pytest.raises(EngineDead, match="ended during a call"):
        await engine.call("rank_programs", [])


async def test_prompts_are_counted_across_restarts() -> None:
    engine = await start_engine()
    counts = ("running", "waiting", "blocks_used", "blocks_total", "quota_blocks", "preemptions")
    view = dict.fromkeys(counts, 0) | {"block_tokens": 32}
    FakeProcess.all[0].answer = view
    assert (await engine.view()).cache_hits is None
    engine.note_prompt(100, 64)
    FakeProcess.all[0].die()
    await asyncio.sleep(2.5)
    FakeProcess.all[-1].answer = view
    engine.note_prompt(60, 96)  # the cache gives whole blocks
    seen = await engine.view()
    assert (seen.prompt_tokens, seen.cached_tokens) == (160, 64 + 60)


async def test_a_dead_engine_says_why_and_when_it_comes_back() -> None:
    """A request that finds it dead is not to blame."""
    engine = await start_engine()
    assert engine.health().explain() is None
    FakeProcess.failures = [RuntimeError("the driver is gone"), RuntimeError("still gone")]
    FakeProcess.all[0].record.begin_step(None)
    FakeProcess.all[0].die()
    with pytest.raises(EngineDead) as caught, engine.open_request("gen-1"):
        pass
    assert not caught.value.is_suspect
    assert FakeProcess.all[0].failed_requests
    assert engine.health().explain() == "killed; restart 1 in 0 s"
    await asyncio.sleep(0.05)
    assert engine.health().state == "dead"
    await asyncio.sleep(2.5)  # after 0.1 s a start that failed after 2 s
    health = engine.health()
    found = (health.attempt, health.restarts, health.retry_in_s)
    assert found == (2, 0, pytest.approx(0.55))
    assert "the driver is gone; restart 2 in 1 s" in (health.explain() or "")
    await asyncio.sleep(1.0)
    assert (engine.health().stage, engine.health().retry_in_s) == ("loading the weights", None)
    await engine.wait_ready(60)
    health = engine.health()
    found = (health.state, health.restarts, health.attempt, health.explain())
    assert found == ("ready", 1, 0, None)


async def test_restarts_wait_longer_and_longer_until_a_process_has_served_for_long() -> None:
    """They go on for as long as they fail, and who waits for the engine is not disturbed."""
    engine = await start_and_kill(*[RuntimeError("no card")] * 50)
    waiting = asyncio.create_task(engine.wait_ready(1e6))
    await asyncio.sleep(1800)
    assert (waiting.done(), engine.health().state) == (False, "dead")
    await waiting
    assert engine.health().state == "ready"
    made = [process.made_at for process in FakeProcess.all[1:]]
    waits = [later - before - 2.0 for before, later in pairwise(made)]
    assert waits == pytest.approx([*BACKOFF_S[1:], *[60.0] * (51 - len(BACKOFF_S))])
    FakeProcess.all[-1].die()
    assert engine.health().attempt == 52
    await engine.wait_ready(1e6)
    await asyncio.sleep(STABLE_S + 1)
    FakeProcess.all[-1].die()
    assert engine.health().attempt == 1


async def test_who_waits_too_long_is_told_why_and_a_stop_ends_the_restarts() -> None:
    engine = await start_and_kill(*[RuntimeError("no card")] * 50)
    with pytest.raises(EngineDead, match=r"not restart within 30 s.*no card"):
        await engine.wait_ready(30)
    await engine.stop()
    count = len(FakeProcess.all)
    await asyncio.sleep(600)
    assert len(FakeProcess.all) == count
    with pytest.raises(EngineDead, match="is stopped") as caught:
        await engine.wait_ready(1)
    assert caught.value.hint is None, "it is not being restarted"


async def test_a_first_start_that_fails_is_an_error() -> None:
    FakeProcess.failures = [RuntimeError("no such model")]
    engine = EngineProcess(OPTIONS, do_nothing)
    with pytest.raises(EngineError, match="did not start: no such model"):
        await engine.start()
    assert engine.health().state == "failed"
    with pytest.raises(EngineDead, match="no such model"):
        await engine.wait_ready(10)


async def test_where_cuda_does_not_work_behind_a_fork_the_next_try_imports_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries_anew = Mock(side_effect=[True, False])
    monkeypatch.setattr(restarts, "give_up_forks", tries_anew)
    failure = RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    FakeProcess.failures = [failure, None]
    engine = await start_engine()
    assert (engine.health().state, len(FakeProcess.all)) == ("ready", 2)
    FakeProcess.failures = [failure]
    with pytest.raises(EngineError, match="forked subprocess"):
        await start_engine()
    assert all("forked subprocess" in call.args[0] for call in tries_anew.call_args_list)


async def test_a_restarted_process_is_prepared_before_its_first_request() -> None:
    """One that can't be prepared is restarted again."""
    told: list[str] = []
    failures = [EngineDead("it ended")]

    async def prepare() -> None:
        if failures:
            raise failures.pop()
        await engine.budget(4096)
        told.append(engine.health().state)
        await asyncio.sleep(5)
        told.append(engine.health().state)

    engine = await start_engine(prepare=prepare)
    FakeProcess.all[0].die()
    await engine.wait_ready(60)
    assert told == ["dead", "dead"]
    assert [process.calls for process in FakeProcess.all] == [[], [], [("set_quota", 4)]]
    assert engine.health().restarts == 1


async def test_an_engine_that_runs_out_of_memory_comes_back_with_half_of_the_batch() -> None:
    engine = await start_engine()
    FakeProcess.all[0].die(SHORT)
    await engine.wait_ready(60)
    assert list_sequences() == [64, 32]
    assert (engine.health().state, engine.health().restarts) == ("ready", 1)
    assert "32 sequences instead of 64" in (engine.health().explain() or "")
    FakeProcess.all[1].die()
    await engine.wait_ready(60)
    assert list_sequences() == [64, 32, 32], "it did not run out of memory again"
    engine = await start_engine(replace(OPTIONS, max_num_seqs=8))
    FakeProcess.all[-1].die(SHORT)
    await engine.wait_ready(60)
    assert "2048 tokens instead of 4096" in (engine.health().explain() or "")


async def test_a_start_that_runs_out_of_memory_tries_with_less() -> None:
    engine = await start_and_kill(*[SHORT] * 8)
    await engine.wait_ready(1000)
    assert list_sequences()[:6] == [64, 64, 32, 16, 8, 8]
    FakeProcess.all.clear()
    FakeProcess.failures = [SHORT, SHORT]
    engine = await start_engine()
    assert list_sequences() == [64, 32, 16]
    assert engine.health().notice is not None
    FakeProcess.failures = [SHORT] * 10
    with pytest.raises(EngineError, match="no memory for the logits"):
        await start_engine()


async def test_a_restart_claims_no_memory_that_the_other_engine_may_have() -> None:
    engine = await start_engine(replace(OPTIONS, kv_start_bytes=8 << 20))
    for limit, expected in ((None, 8 << 20), (3 << 20, 3 << 20), (1 << 30, 8 << 20), (0, 1)):
        engine.start_limit_bytes = limit
        FakeProcess.all[-1].die()
        await engine.wait_ready(1000)
        assert FakeProcess.all[-1].options.kv_start_bytes == expected
    assert engine.options.kv_start_bytes == 8 << 20


SIZES = choose_graph_sizes(128, samples=True, on_card=True)
WIDE = replace(OPTIONS, max_num_seqs=128, graph_sizes=SIZES)


def test_only_both_limits_are_halved_down_to_a_floor() -> None:
    now = WIDE
    for sequences, tokens in ((64, 2048), (32, 1024), (16, 512), (8, 512)):
        now = halve_batch(now)
        sizes = choose_graph_sizes(sequences, samples=True, on_card=True)
        batch = {"max_num_seqs": sequences, "max_batched_tokens": tokens, "graph_sizes": sizes}
        assert now == replace(WIDE, **batch)
    assert halve_batch(now) is None
    assert halve_batch(replace(WIDE, max_num_seqs=4, max_batched_tokens=256)) is None
    verifier = replace(WIDE, name="verifier", max_batched_tokens=1024, graph_sizes=PASS_SIZES)
    fitting = (32, 64, 128, 192, 256, 384, 512)
    for options, graphs in ((replace(WIDE, graph_sizes=()), ()), (verifier, fitting)):
        assert halve_batch(options).graph_sizes == graphs
