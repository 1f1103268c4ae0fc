"""Metrics follow events, views and plain requests."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flashedge import events
from flashedge.config import load_config
from flashedge.engine.base import EngineView, Health
from flashedge.engine.http_requests import MAX_CHOICES, PlainRequest, PlainRequests
from flashedge.errors import QueueFull, RequestError
from flashedge.events import Event, Progress, RunCancelled, RunFailed, RunFinished, RunStarted
from flashedge.runtime.metrics import RECENT, Metrics
from flashedge.runtime.plain_requests import watch_request
from flashedge.runtime.programs.scheduler import PairScheduler
from flashedge.runtime.run_state import RunState
from flashedge.runtime.served_pair import UNLOADED, PairState
from flashedge.scheduling.programs.estimates import Scheduling, estimate_programs
from flashedge.scheduling.programs.program import Kind, Member, Program
from flashedge.types import UNUSED, NodeId
from tests.support import fake_service
from tests.support.made_run import build_result, build_step
from tests.support.runtime_rig import BEAM

READY = Health(state="ready")
VIEW = replace(fake_service.VIEW, blocks_used=3, blocks_total=40, preemptions=5)
CHAT = {"prompt_tokens": 2, "first_token_s": 0.25, "total_s": 1.0}


def assert_shows(metrics: Metrics, figures: Mapping[str, float | None]) -> None:
    """figures: by `name{label}`; None for what is not shown."""
    found = {
        s.name.removeprefix("flashedge:") + "".join(f"{{{v}}}" for v in s.labels.values()): s.value
        for family in text_string_to_metric_families(metrics.render())
        for s in family.samples
    }
    assert {name: found.get(name) for name in figures} == figures


class Observed(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.runs = {name: RunState(name, BEAM) for name in "abc"}

    def see(self, run: str, event: Event, now_s: float = 1.0) -> None:
        self.runs[run].observe(event, now_s)
        self.observe(self.runs[run], event)


def make_state(
    *, queued: int = 0, running: int = 0, generator: Health = READY, verifier: Health = READY
) -> PairState:
    async def read_views() -> dict[str, EngineView]:
        return {}

    health = replace(UNLOADED, generator=generator, verifier=verifier)
    return PairState(health=health, queued=queued, running=running, read_views=read_views)


def test_runs_are_counted_by_how_they_ended() -> None:
    metrics = Observed()
    metrics.observe_pairs({"p": make_state(queued=3, running=2)}, {"p": {}})
    assert_shows(metrics, {"num_runs_waiting{p}": 3, "num_runs_running{p}": 2})
    metrics.see("a", RunStarted(config={}, queue_s=0.1))
    metrics.see("b", RunStarted(config={}, queue_s=0.1))
    metrics.see("c", RunCancelled(reason="left the queue"))
    metrics.see("a", RunFinished(result=build_result(timing={"total_s": 3.0})))
    metrics.see("b", RunFailed(error="x", code="y"))
    ends = {f"runs_total{{{end}}}": 1 for end in ("finished", "failed", "cancelled")}
    assert_shows(metrics, {**ends, "run_seconds_sum": 3.0, "queue_seconds_count": 2})


def test_tokens_and_the_time_to_the_first_are_counted() -> None:
    metrics = Observed()
    for now_s, event in (
        (10.0, RunStarted(config={}, queue_s=0.0)),
        (10.0, Progress(tokens=((NodeId(1), 0),))),
        (10.5, Progress(tokens=((NodeId(1), 3),))),
        (99.0, build_step(1, "", tokens=5)),
        (99.0, build_step(1, "", tokens=6)),
        (99.0, events.Probed(node=NodeId(1), text="7}", tokens=5)),
        (99.0, events.EarlyExit(reason="certainty", tokens=9)),
        (99.0, RunFinished(result=build_result())),
    ):
        metrics.see("a", event, now_s)
    metrics.observe_chat(**CHAT, completion_tokens=9, finish="stop")
    latency = metrics.describe_latency()
    assert latency["run"]["first_token_s"] == {"p50": 0.5, "p90": 0.5, "p99": 0.5}
    assert latency["chat"]["token_s"] == dict.fromkeys(("p50", "p90", "p99"), 0.75 / 8)
    counts = {"tree_tokens": 11, "chat_tokens": 9, "generation_tokens": 20, "prompt_tokens": 11 + 2}
    counts |= {"probe_tokens": 5, "verifier_tokens": 120, "verifier_cached_tokens": 60}
    counts |= {"speculated_tokens": 4, "speculation_kept_tokens": 5, "speculation_kept_steps": 2}
    counts |= {"steps_scored_ahead": 1}
    assert_shows(metrics, {f"{name}_total": count for name, count in counts.items()})
    assert_shows(metrics, {"early_exits_total{certainty}": 1, "early_exits_total{deadline}": 0})
    first, each = "time_to_first_token_seconds_sum", "time_per_output_token_seconds"
    assert_shows(metrics, {f"{first}{{run}}": 0.5, f"{first}{{chat}}": 0.25})
    assert_shows(metrics, {f"{each}_count{{run}}": 1, f"{each}_sum{{chat}}": 0.75 / 8})


def test_only_requests_that_finished_tell_how_fast_they_were() -> None:
    metrics = Observed()
    for run, end in (("a", RunFailed(error="x", code="y")), ("b", RunCancelled(reason="z"))):
        for event in (RunStarted(config={}, queue_s=0.0), build_step(1, "", tokens=5), end):
            metrics.see(run, event)
    metrics.observe_chat(**CHAT, completion_tokens=9, finish="cancelled")
    assert [found["requests"] for found in metrics.describe_latency().values()] == [0, 0]
    metrics.observe_chat(**CHAT, completion_tokens=12, finish="length", choices=4)
    metrics.observe_chat(**CHAT, completion_tokens=1, finish="stop")
    chat = metrics.describe_latency()["chat"]
    assert (chat["requests"], chat["token_s"]["p99"]) == (2, 0.375)


def test_counts_of_engines_are_kept_across_their_restarts() -> None:
    metrics = Metrics()
    figures = ((100, 60, 40), (300, 210, 90), (50, 10, 10))  # the last by a new process
    for prompt, cached, verified in figures:
        replays = {"verified_tokens": verified, "rollbacks": 1}
        drafts = {"drafted_tokens": 2 * verified, "accepted_tokens": verified}
        counted = {"replays": replays, "token_drafts": drafts, "kv_moved": {"saved_bytes": prompt}}
        view = replace(VIEW, prompt_tokens=prompt, cached_tokens=cached, **counted)
        metrics.observe_pairs({"p": make_state()}, {"p": {"generator": view}})
    assert (view.cache_hits, VIEW.cache_hits) == (0.2, None)
    counts = {"prefix_cache_queries": 350, "prefix_cache_hits": 220}
    counts |= {
        "kv_saved_bytes": 350,
        "deterministic_verified_tokens": 100,
        "deterministic_rollbacks": 1,
    }
    counts |= {"spec_decode_num_draft_tokens": 200, "spec_decode_num_accepted_tokens": 100}
    assert_shows(metrics, {f"{name}_total{{generator}}{{p}}": n for name, n in counts.items()})


def test_waits_of_programs_and_seconds_of_boosts_are_counted() -> None:
    metrics = Metrics()
    members = {"a": Member(kind=Kind.BATCH, max_tokens=9)}
    programs = [
        Program(key="a", arrived_s=0.0, started_s=at_s, members=members)
        for at_s in (None, None, 1.0)
    ]
    estimates = tuple(estimate_programs("p", programs, 2.0, {}))
    now = Scheduling(policy="fcfs", programs=estimates, boost_running_s=3.0, boost_open_s=0.5)
    metrics.observe_scheduling(["p"], now)
    metrics.observe_wait(Kind.CHAT, 0.02)
    metrics.observe_wait(Kind.CHAT, 0.03)
    for kind, waiting, waited in zip(Kind, (0, 0, 2), (2, 0, 0), strict=True):
        told = {f"program_queue_time_seconds_count{{{kind}}}": waited}
        assert_shows(metrics, {**told, f"num_programs_waiting{{{kind}}}{{p}}": waiting})
    assert_shows(metrics, {"program_queue_time_seconds_sum{chat}": 0.05})
    metrics.observe_scheduling(["p"], replace(now, programs=(), boost_running_s=4.0))
    boosts = {"boost_seconds_total{running}": 4.0, "boost_seconds_total{open}": 0.5}
    assert_shows(metrics, {**boosts, "num_programs_waiting{batch}{p}": 0})


def test_the_load_of_the_engines_is_shown() -> None:
    metrics = Metrics()
    dead = Health(state="dead", restarts=2)
    state = make_state(generator=replace(READY, restarts=1), verifier=dead)
    for _ in range(2):
        metrics.observe_pairs({"p": state}, {"p": {"generator": VIEW}})
    generator = {"kv_blocks_used": 3, "kv_blocks_total": 40, "num_preemptions_total": 5}
    generator |= {"engine_restarts_total": 1}
    assert_shows(metrics, {f"{name}{{generator}}{{p}}": n for name, n in generator.items()})
    assert_shows(metrics, {"engine_up{verifier}{p}": 0, "engine_restarts_total{verifier}{p}": 2})
    alone = make_state(verifier=Health(state=UNUSED))
    metrics.observe_pairs({"q": alone}, {"q": {"generator": VIEW, "verifier": VIEW}})
    shown = {"engine_up{generator}{q}": 1, "engine_up{verifier}{q}": None}
    assert_shows(metrics, {**shown, "kv_blocks_used{verifier}{q}": None})


def test_each_pair_has_its_own_figures_while_it_is_loaded() -> None:
    metrics, used, preempted = Metrics(), "kv_blocks_used{generator}", "num_preemptions_total"
    both = {"p": make_state(queued=1), "q": make_state(running=2)}
    views = {"p": {"generator": VIEW}, "q": {"generator": replace(VIEW, blocks_used=7)}}
    metrics.observe_pairs(both, views)
    assert_shows(metrics, {f"{used}{{p}}": VIEW.blocks_used, f"{used}{{q}}": 7})
    metrics.observe_pairs({"q": make_state()}, {"q": {"generator": replace(VIEW, preemptions=9)}})
    assert_shows(metrics, {f"{used}{{p}}": None, "num_runs_waiting{p}": None})
    counts = {f"{preempted}{{generator}}{{p}}": VIEW.preemptions}
    assert_shows(metrics, {**counts, f"{preempted}{{generator}}{{q}}": 9})


def test_percentiles_are_times_of_requests() -> None:
    metrics = Metrics()

    def note(first_token_s: float, token_s: float | None) -> None:
        tokens, total_s = (1, first_token_s) if token_s is None else (2, first_token_s + token_s)
        told = {**CHAT, "first_token_s": first_token_s, "total_s": total_s}
        metrics.observe_chat(**told, completion_tokens=tokens, finish="stop")

    none = {"requests": 0, "first_token_s": None, "token_s": None}
    assert metrics.describe_latency() == {"chat": none, "run": none}
    for number in range(100, 0, -1):
        note(float(number), None if number == 1 else number / 1024)
    found = metrics.describe_latency()["chat"]
    assert found["first_token_s"] == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert found["token_s"] == {"p50": 51 / 1024, "p90": 91 / 1024, "p99": 100 / 1024}
    for _ in range(RECENT):
        note(1.0, None)
    found = metrics.describe_latency()["chat"]
    assert (found["requests"], found["first_token_s"]["p99"]) == (RECENT, 1.0)


# ---------------------------------------------------------------- plain requests


async def ignore() -> None: ...


def make_ask(choices: int) -> PlainRequest:
    return PlainRequest(program="one", choices=choices, max_tokens=64)


def build_plain(metrics: Metrics) -> PlainRequests:
    config = load_config({"scheduling_policy": "fcfs"}, environ={})
    scheduler = PairScheduler("bundled", config, lambda keys: ignore())
    return PlainRequests(partial(watch_request, metrics, lambda pair: scheduler))


async def test_stopping_aborts_what_is_open_and_waits_for_its_end() -> None:
    plain, told, ended = build_plain(Metrics()), asyncio.Event(), []

    async def abort() -> None:
        told.set()

    async def request() -> None:
        with plain.open(make_ask(1), abort):
            await told.wait()
            assert plain.is_stopping
        ended.append(True)

    asked = [asyncio.create_task(request()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not plain.is_stopping
    await plain.stop()
    assert ended == [True] * 3
    await asyncio.gather(*asked)


async def test_stopping_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashedge.engine.http_requests.STOP_TIMEOUT_S", 0.01)
    plain = build_plain(Metrics())
    with plain.open(make_ask(1), ignore):
        await plain.stop()
        assert plain._open.total() == 1


def test_too_many_choices_are_refused() -> None:
    plain = build_plain(Metrics())
    with pytest.raises(RequestError, match="at most 256"):
        plain.check_admission("", MAX_CHOICES + 1)
    with plain.open(make_ask(MAX_CHOICES - 1), ignore):
        plain.check_admission("another pair", MAX_CHOICES)
        plain.check_admission("", 1)
        refused = pytest.raises(QueueFull, match="255 completions and scores are open")
        with refused, plain.open(make_ask(2), ignore):
            pass
    assert plain._open.total() == 0


@pytest.mark.parametrize(
    ("finishes", "error", "told"),
    [
        (("stop",), None, "stop"),
        (("length",), None, "length"),
        (("stop", "length"), None, "length"),
        (("stop",), RuntimeError(), "stop"),
        ((), RuntimeError(), "error"),
        ((), GeneratorExit(), "cancelled"),
    ],
)
def test_metrics_learn_how_a_request_ended(
    finishes: tuple[str, ...], error: BaseException | None, told: str
) -> None:
    metrics, ask = Metrics(), make_ask(max(1, len(finishes)))
    with suppress(RuntimeError, GeneratorExit), build_plain(metrics).open(ask, ignore) as follow:
        follow(7, 2, ())
        follow(7, 3, finishes)
        if error is not None:
            raise error
    counts = {f"chats_total{{{told}}}": 1, "chat_tokens_total": 5}
    assert_shows(metrics, {**counts, "time_to_first_token_seconds_count{chat}": 1})
