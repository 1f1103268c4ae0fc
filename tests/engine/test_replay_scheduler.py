"""Random events on the real scheduler: no token is lost, no block leaks, windows yield tokens.

Requests arrive and are aborted, memory comes and goes, and the engine is lost and starts again.
FLASHEDGE_REPLAY_SCHEDULES sets how many schedules. A thousand of both kinds take 2 to 4 minutes.
"""

import os
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flashedge
from flashedge.engine.vllm import compat
from flashedge.scheduling.determinism import PassShape
from scripts.bench.determinism.token_runner import VOCABULARY, make_scheduler
from scripts.bench.flashtts.truncation_real import TruncatingScheduler
from tests.support.replay_machine import BLOCK, STOP, Asked, Machine, ScoreMachine, draw_path
from tests.support.search_machine import (
    ENDS,
    RULES,
    DraftingMachine,
    Search,
    SearchMachine,
    SlotMachine,
    Step,
)

SCHEDULES = int(os.environ.get("FLASHEDGE_REPLAY_SCHEDULES", "60"))
MODEL = Path(flashedge.__file__).parent / "bundled" / "generator"
SHAPES = (
    PassShape(window=8),
    PassShape(window=16, group=2, prefill_windows=2),
    PassShape(window=16, group=4, prefill_windows=1),
    PassShape(window=32, group=3, prefill_windows=3),
)
CROWDED: dict[type[Machine], int] = {Machine: 314, ScoreMachine: 115}
"""Schedules in which what the requests of a pass keep in the cache leaves no room for any."""


@pytest.fixture(autouse=True)
def _environment() -> None:
    compat.prepare_environment(1)


def make_machine(
    seed: int,
    scheduler_class: Any = None,
    machine: type[Machine] = Machine,
    *,
    is_async: bool = False,
) -> Machine:
    draw = Random(seed)
    start = partial(
        make_scheduler,
        draw.choice(SHAPES),
        MODEL,
        blocks=draw.choice((20, 40, 100)),
        block_tokens=BLOCK,
        sequences=draw.choice((3, 8)),
        max_model_len=draw.choice((64, 100, 128)),
        scheduler_class=scheduler_class,
    )
    return machine(start, seed, is_async=is_async)


def draw_search_start(draw: Random, sequences: tuple[int, ...]) -> partial[Any]:
    """What makes the scheduler of random searches."""
    return partial(
        make_scheduler,
        PassShape(window=16, group=2, prefill_windows=2),
        MODEL,
        blocks=draw.choice((40, 100, 200)),
        block_tokens=BLOCK,
        sequences=draw.choice(sequences),
        max_model_len=draw.choice((100, 128)),
        boundaries=RULES,
    )


def run_named(machine: Machine | SearchMachine, seed: int) -> None:
    """Run a schedule. Where it fails, say which one it is."""
    try:
        machine.run()
    except AssertionError as error:
        raise AssertionError(f"schedule {seed}: {error}") from error


@pytest.mark.parametrize(
    ("kind", "is_async"), [(Machine, False), (Machine, True), (ScoreMachine, False)]
)
def test_random_schedules(kind: type[Machine], is_async: bool) -> None:
    found: Counter[str] = Counter()
    for seed in (*range(SCHEDULES), CROWDED[kind]):
        machine = make_machine(seed, machine=kind, is_async=is_async)
        if seed == CROWDED[kind]:
            machine.restart_rate = 0.0
        run_named(machine, seed)
        found.update(machine.counters)
    often = (
        ("passes", "aborted", "sent_again")
        if kind is ScoreMachine
        else ("rollbacks", "preemptions", "aborted", "sent_again")
    )
    assert all(found[name] > SCHEDULES for name in often), found
    assert (found["overlapping"] > SCHEDULES) == is_async


@pytest.mark.parametrize(
    ("kind", "is_async"),
    [(SearchMachine, False), (SearchMachine, True), (SlotMachine, False), (SlotMachine, True)],
)
def test_random_searches(kind: type[SearchMachine], is_async: bool) -> None:
    """Drafts that are paused, adopted and dropped, also while a token of theirs is in flight."""
    found: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        start = draw_search_start(Random(seed), (4, 16))
        machine = kind(start, seed, is_async=is_async)
        run_named(machine, seed)
        found.update(machine.counters)
    often = ("kept_steps", "paused", "dropped_kv", "preemptions", "aborted")
    assert all(found[name] > SCHEDULES // 2 for name in often), found
    assert (found["overlapping"] > SCHEDULES) == is_async


class TruncatingMachine(SearchMachine):
    deterministic, client = 0.0, "0.85"

    def _add(self, search: Search, step: Step) -> None:
        name = f"step{len(self._steps)}"
        super()._add(search, step)
        job = self.scheduler.drafts._jobs.get(name)
        if job is not None and job.start < 0:
            step.copied = tuple(job.request.prompt_token_ids[len(step.path) :])
            self.counters["copied"] += 1


def test_random_searches_whose_steps_begin_with_tokens_of_their_siblings() -> None:
    """What comes behind the copied tokens is what the step's own seed draws, to the step's end."""
    found, schedules = Counter[str](), SCHEDULES // 3
    for seed in range(schedules):
        start = draw_search_start(Random(seed), (4, 16))
        start = partial(start, scheduler_class=TruncatingScheduler)
        machine = TruncatingMachine(start, seed, is_async=False)
        run_named(machine, seed)
        found.update(machine.counters)
    often = ("copied", "kept_steps", "preemptions", "aborted")
    assert all(found[name] > schedules // 2 for name in often), found


@pytest.mark.parametrize("is_async", [False, True])
def test_random_searches_with_drafted_tokens(is_async: bool) -> None:
    """The runner draws several tokens in a step, also behind the end of a request's step."""
    found: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        draw = Random(seed)
        start = partial(draw_search_start(draw, (4, 16, 64)), card_drafts=draw.choice((1, 7)))
        machine = DraftingMachine(start, seed, is_async=is_async)
        run_named(machine, seed)
        found.update(machine.counters)
    often = ("kept_steps", "paused", "preemptions", "aborted", "accepted_tokens", "cut_steps")
    assert all(found[name] > SCHEDULES // 2 for name in often), found
    assert found["accepted_tokens"] < found["drafted_tokens"]
    assert (found["overlapping"] > SCHEDULES) == is_async


def make_noted() -> tuple[Machine, list[tuple[int, bool]]]:
    """An asynchronous core, and a list that takes each step's tokens and whether it is a pass."""
    start = partial(make_scheduler, PassShape(window=16), MODEL, blocks=100, block_tokens=BLOCK)
    machine = Machine(partial(start, sequences=8, max_model_len=128), 0, is_async=True)
    machine.runner._error_rate = 0.0
    schedule = machine.scheduler.schedule
    steps: list[tuple[int, bool]] = []

    def note(*args: Any) -> Any:
        output = schedule(*args)
        steps.append((output.total_num_scheduled_tokens, machine.scheduler.passes.is_pass))
        return output

    machine.scheduler.schedule = note
    return machine, steps


def ask(machine: Machine, name: str, *, deterministic: bool) -> Asked:
    """Add a request that draws 20 tokens at least."""
    asked = Asked(prompt=(1, 2, 3), seed=1, max_tokens=90, deterministic=deterministic)
    while len(draw_path(asked.prompt, asked.seed, 90, 128)) < 20:
        asked.seed += 1
    machine._names[name] = asked
    machine._add(name, asked)
    return asked


def test_no_step_is_scheduled_while_a_pass_waits() -> None:
    """The step in flight ends instead, and no step without tokens goes to the model."""
    machine, steps = make_noted()
    asked = ask(machine, "r0", deterministic=True)
    while not asked.is_over:
        machine._step()
    assert (0, False) not in steps
    assert sum(is_pass for _, is_pass in steps) > 1


def test_a_request_without_memory_ends_the_overlap_once() -> None:
    """A pass that found no memory for it is tried again when a request has left."""
    machine, steps = make_noted()
    manager, lacking = machine.scheduler.kv_cache_manager, {"late"}
    allocate = manager.allocate_slots
    manager.allocate_slots = lambda request, *args, **options: (
        None if request.request_id in lacking else allocate(request, *args, **options)
    )
    ask(machine, "r0", deterministic=False)
    machine._step()
    late = ask(machine, "late", deterministic=True)
    for _ in range(15):
        machine._step()
    assert steps.count((0, True)) == 1
    lacking.clear()
    machine._abort("r0")
    while not late.is_over:
        machine._step()
    assert steps.count((0, True)) == 1


def test_a_token_in_flight_is_dropped_with_the_candidates_before_it() -> None:
    """A child's step ends with a draft's verified tokens, while the draft has drawn on. Nothing of
    what it drew is kept, so no later token is drawn behind a gap and rolled back."""
    machine = SearchMachine(draw_search_start(Random(3), (8,)), 0, is_async=True)
    machine.runner._error_rate = 0.0
    drafts, replays = machine.scheduler.drafts, machine.scheduler.passes.windows.replays
    search = Search(name="run", deterministic=True, steps=[])
    other, step = (
        Step(path, seed, (seed,), max_tokens=tokens)
        for tokens, (seed, path) in zip(
            (50, 3),
            (
                (seed, path)
                for seed, path in ((n, (n % VOCABULARY,)) for n in range(1, 9999))
                if len(draw_path(path, seed, 50, 128, {STOP, *ENDS})) == 50
            ),
            strict=False,
        )
    )
    machine._add(search, other)  # drafts are drawn while it runs
    machine._add(search, step)

    def find_draft() -> Any:
        """The draft, once it has verified tokens, candidates, and a token in flight behind them."""
        for job in drafts._jobs.values():
            replay = replays.get(job.request.request_id)
            has_more = replay and replay.candidates and job.request.num_in_flight_tokens
            if job.draft and job.draft.token_ids and has_more:
                return job.draft
        return None

    while find_draft() is None:
        assert machine._step(), "it is drafted"
    tokens = len(find_draft().token_ids)
    for limit in (tokens, 20):
        search.level += 1
        step = Step((*step.path, *step.tokens), step.seed, (step.seed,), max_tokens=limit)
        machine._add(search, step)
        while not step.is_over:
            machine._step()
    assert drafts.counters["kept_tokens"] >= tokens
    assert machine.scheduler.passes.counters["rollbacks"] == 0


@pytest.mark.parametrize(
    ("removed", "kind"),
    [("salt", Machine), ("commit gate", Machine), ("isolation", Machine), ("salt", ScoreMachine)],
)
def test_a_missing_safeguard_is_found(removed: str, kind: type[Machine]) -> None:
    """The machine itself notices: passes read KV of shared steps, or wrong tokens come out."""
    from scripts.bench.determinism.weakened import SAFEGUARDS

    with pytest.raises(AssertionError):  # noqa: PT012  a schedule of them
        for seed in range(SCHEDULES):
            make_machine(seed, SAFEGUARDS[removed], kind).run()


def test_without_a_deterministic_request_every_step_is_vllms_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stock scheduling is called as it is, and nothing of ours touches its output."""
    from vllm.v1.core.sched.scheduler import Scheduler

    calls: list[tuple[Any, ...]] = []
    schedule = Scheduler.schedule

    def count(self: Any, *args: Any) -> Any:
        calls.append((self.running, self.waiting, args))
        return schedule(self, *args)

    monkeypatch.setattr(Scheduler, "schedule", count)
    machine = make_machine(3)
    machine.restart_rate = 0.0
    for asked in machine.asked:
        asked.deterministic = False
    scheduler = machine.scheduler
    waiting = scheduler.waiting
    machine.run()
    counters = scheduler.passes.counters
    assert counters["stock_steps"] == len(calls) > 10
    assert sum(counters.values()) == counters["stock_steps"]
    assert all(queue is waiting for _, queue, _ in calls), "the queue is never another"
    assert machine.runner.passes == 0
