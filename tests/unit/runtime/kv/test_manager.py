"""The KV memory while runs go on, on simulated engines: it moves, and no tree changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle

import pytest

from flashedge.engine.base import Health
from flashedge.errors import GenerationFailed
from flashedge.events import Event, KvSplitChanged, Offloaded, Restored
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.kv.build import build_engine_cost
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.manager import MAPPED, PARTS, CountedGenerator, CountedVerifier, KvManager
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.costs import RTX_4090, RooflineCurve
from flashedge.scheduling.kv.split import EngineRole, HostLink, KvSplit
from flashedge.scheduling.kv.stages import Workload
from scripts.lab.sim.engine_loop import SimEngine
from scripts.lab.sim.pair import Faults
from tests.support.engine_rig import ask, generate
from tests.support.runtime_rig import (
    BEAM,
    BEST,
    CONFIG,
    ROOM,
    TINY,
    assert_nothing_left,
    both,
    drive,
    driver_of,
    prompt_of,
    sim_engines,
)

GENERATOR, VERIFIER = EngineRole.GENERATOR, EngineRole.VERIFIER
DVTS = replace(BEAM, strategy="dvts", n=8, seed=3)
WIDE = replace(BEAM, n=32)
LINK = HostLink(bytes_per_s=1e12, capacity_bytes=1 << 30)
WHOLE = dict.fromkeys(("generator_bytes", "verifier_bytes"), ROOM.kv_bytes)
TIMES = {"decode_batch": 8, "prefill_batch": 8, "generate_s": 0.0, "verify_s": 0.0}
SAVED = {"generator_saved": True, "verifier_saved": True}
ALTERNATING = KvSplit(**WHOLE, **TIMES, **SAVED, offload=True)
HALF, MORE = ROOM.kv_bytes // 2, 3 * ROOM.kv_bytes // 4


def alternate(load: Workload | None) -> KvSplit:
    return ALTERNATING


def share(generator_bytes: int) -> KvSplit:
    sizes = {"generator_bytes": generator_bytes, "verifier_bytes": ROOM.kv_bytes - generator_bytes}
    return replace(ALTERNATING, **sizes, offload=False)


@dataclass(frozen=True)
class FinishedRun:
    events: list[Event]
    record: dict[str, object]

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    @property
    def splits(self) -> list[tuple[int, int]]:
        found = [event for event in self.events if isinstance(event, KvSplitChanged)]
        return [(event.generator_bytes, event.verifier_bytes) for event in found]


class ManagedEngines:
    """Engines whose pools could each hold all of the memory, and their KV manager."""

    def __init__(self, engines: Engines, manager: KvManager) -> None:
        self.engines, self.manager = engines, manager
        self.shared = replace(
            engines,
            generator=CountedGenerator(engines.generator, manager),
            verifier=CountedVerifier(engines.verifier, manager),
        )

    async def drive(self, spec: Request) -> FinishedRun:
        """Drive a run. Its tree must be that of engines whose memory nobody moves."""
        events: list[Event] = []
        tokens = len(prompt_of(self.engines, spec))
        with self.manager.join(events.append, tokens, is_baseline=spec.baseline) as memory:
            driver = driver_of(self.shared, spec, events.append, on_turn=memory.follow)
            outcome = await driver.run()
        assert outcome == (await drive(sim_engines(config=CONFIG), spec)).outcome
        return FinishedRun(events, memory.record)


@asynccontextmanager
async def managed_engines(
    *,
    kv_bytes: int = ROOM.kv_bytes,
    link: HostLink | None = None,
    forced: Callable[[Workload], KvSplit] | None = None,
    verifier: Faults | None = None,
) -> AsyncIterator[ManagedEngines]:
    engines = sim_engines(config=ROOM, verifier=verifier)
    views = [await engine.view() for engine in both(engines)]
    curve = RooflineCurve(device=RTX_4090, shape=TINY)
    sizes = [(view.block_bytes, view.block_tokens) for view in views]
    costs = [build_engine_cost(curve, *size, ROOM.max_model_len, 64) for size in sizes]
    curves = Curves(generator=curve, verifier=curve, link_bytes_per_s=1e12, source="a test")
    pair = engines.generator, engines.verifier
    manager = KvManager(*pair, tuple(costs), curves, kv_bytes=kv_bytes, link=link)  # type: ignore[arg-type]
    if forced is not None:
        manager.choose_split = forced  # type: ignore[method-assign]
    await manager.start()
    yield ManagedEngines(engines, manager)
    await manager.wait_settled()
    await manager.stop()
    await assert_nothing_left(engines)


@pytest.mark.parametrize("spec", [BEAM, WIDE, DVTS, BEST], ids=lambda s: f"{s.strategy}-{s.n}")
async def test_the_split_follows_the_load_and_changes_no_tree(spec: Request) -> None:
    async with managed_engines(kv_bytes=2 * ROOM.kv_bytes // 3) as here:
        run = await here.drive(spec)
        assert run.record["curves"] == "a test"
        assert {e.curves for e in run.events if isinstance(e, KvSplitChanged)} == {"a test"}
        assert run.record["generator_bytes"] == run.splits[-1][0]
        assert run.record["split_moves"] == len(run.splits) - 1
        assert (here.manager.mover.divisions > 0) == (spec is WIDE), "8 paths fit as they stand"


async def test_memory_moves_less_often_if_a_move_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def moves() -> int:
        async with managed_engines(kv_bytes=4 * ROOM.kv_bytes // 5) as here:
            await here.drive(WIDE)
            return here.manager.mover.divisions

    at_once, budget = await moves(), SimEngine.budget

    async def slow(self: SimEngine, kv_bytes: int) -> int:
        await asyncio.sleep(100.0)
        return await budget(self, kv_bytes)

    monkeypatch.setattr(SimEngine, "budget", slow)
    assert 0 < await moves() < at_once


async def test_both_quotas_never_exceed_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    granted_bytes, budget = list[int](), SimEngine.budget
    shares = cycle(share(part * ROOM.kv_bytes // 6) for part in (3, 4, 2))
    async with managed_engines(forced=lambda load: next(shares)) as here:

        async def watched(self: SimEngine, kv_bytes: int) -> int:
            granted = await budget(self, kv_bytes)
            views = [await e.view() for e in both(here.engines)]
            granted_bytes.append(sum(v.quota_blocks * v.block_bytes for v in views))
            return granted

        monkeypatch.setattr(SimEngine, "budget", watched)
        await asyncio.gather(*(here.drive(s) for s in (BEAM, DVTS)))
        assert here.manager.mover.divisions > 3
        assert max(granted_bytes) <= ROOM.kv_bytes


@pytest.mark.parametrize("saved", [True, False])
async def test_engines_alternate_under_several_runs_and_a_chat(saved: bool) -> None:
    split = replace(ALTERNATING, generator_saved=saved, verifier_saved=saved)
    async with managed_engines(forced=lambda load: split) as here:
        chat = ask(here.engines.generator, BEAM.problem, seed=9, max_tokens=30)
        expected = await generate(here.shared.generator, chat)
        runs = asyncio.gather(*(here.drive(s) for s in (BEAM, DVTS, BEST)))
        await asyncio.sleep(0.02)
        answer = await generate(here.shared.generator, chat)
        run, *_ = await runs
        assert answer.token_ids == expected.token_ids
        assert here.manager.mover.offloads > 4
        assert run.count(Offloaded) > 2
        assert run.count(Restored) > 2
        moved = sum(e.saved_bytes for e in run.events if isinstance(e, Offloaded))
        assert (moved > 0) == saved
        assert run.record["offload"] is True


async def test_the_memory_changes_hands_at_a_common_barrier() -> None:
    async with managed_engines(forced=alternate) as here:
        count, manager = here.manager.count_request, here.manager
        with count(GENERATOR):
            with count(GENERATOR), count(VERIFIER):
                assert manager.next_owner is GENERATOR
            with count(VERIFIER):
                assert manager.next_owner is GENERATOR  # another run still generates
        with count(VERIFIER):
            assert manager.next_owner is VERIFIER
            await manager.wait_settled()
        assert manager.next_owner is VERIFIER  # no request is open for the other engine
        with count(GENERATOR):
            assert manager.next_owner is GENERATOR
            await manager.wait_settled()


async def test_nothing_is_offloaded_while_a_plain_request_is_open() -> None:
    """Endless requests must not keep a run from being scored."""
    async with managed_engines(kv_bytes=ROOM.kv_bytes // 2 + 8192, link=LINK) as here:
        chat = ask(here.engines.generator, BEAM.problem, seed=9, max_tokens=40)

        async def chatting() -> None:
            while True:
                with here.manager.count_plain_request():
                    await generate(here.shared.generator, chat)

        for _ in range(2):
            endless = [asyncio.create_task(chatting()) for _ in range(3)]
            run = await here.drive(BEAM)
            assert run.count(Offloaded) == 0
            for task in endless:
                task.cancel()
            await asyncio.wait(endless)


async def test_a_plain_request_after_the_last_run_ends_the_alternation() -> None:
    """Else endless chats would keep a request to the offloaded verifier waiting for ever."""
    async with managed_engines(kv_bytes=ROOM.kv_bytes // 2 + 8192, link=LINK) as here:
        assert (await here.drive(replace(BEAM, n=16))).count(Offloaded) > 0
        await here.manager.wait_settled()
        with here.manager.count_plain_request():
            await here.manager.wait_settled()
            assert here.manager.mover.offloaded is None


async def test_a_verifier_may_die_while_the_engines_alternate() -> None:
    faults = Faults(die_after_steps=frozenset({2, 5}), restart_s=0.3)
    async with managed_engines(forced=alternate, verifier=faults) as here:
        await here.drive(BEAM)
        assert here.engines.verifier.health().restarts == 2


async def test_a_baseline_run_has_half_of_the_memory_for_each_engine() -> None:
    async with managed_engines(forced=alternate) as here:
        run = await here.drive(replace(BEAM, baseline=True))
        assert set(run.splits) == {(HALF, HALF)}
        assert not any(e.offload for e in run.events if isinstance(e, KvSplitChanged))
        await here.manager.wait_settled()
        assert run.count(Offloaded) == 0


async def test_offload_is_chosen_only_if_it_is_faster() -> None:
    spec, slow = replace(BEAM, n=16), replace(LINK, bytes_per_s=1.0, switch_s=10.0)
    for link, offloads in ((LINK, True), (slow, False), (None, False)):
        async with managed_engines(kv_bytes=ROOM.kv_bytes // 2 + 8192, link=link) as here:
            run = await here.drive(spec)
            assert (run.count(Offloaded) > 0) == offloads


# ---------------------------------------------------------------- budgets that are not granted


class ShortMemory:
    """Refuses budgets of an engine beyond a limit, as a card does that has no memory left."""

    def __init__(self, engine: SimEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limit_bytes: int | None = None
        self.requested: list[int] = []
        self._engine, self._budget, self._restore = engine, engine.budget, engine.restore
        monkeypatch.setattr(engine, "budget", self.budget)
        monkeypatch.setattr(engine, "restore", self.restore)

    async def budget(self, kv_bytes: int) -> int:
        self.requested.append(kv_bytes)
        if self.limit_bytes is not None and kv_bytes > self.limit_bytes:
            view = await self._engine.view()
            return view.quota_blocks * view.block_bytes
        return await self._budget(kv_bytes)

    async def restore(self) -> int:
        if self.limit_bytes is not None:
            await self._budget(self.limit_bytes)
        return await self._restore()


async def test_mapped_memory_changes_hands_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one part is given up, KV comes back into the parts before. Nobody serves meanwhile."""
    moves: list[tuple[str, str, float]] = []

    def note(engine: SimEngine, name: str, way: str) -> None:
        move = getattr(engine, way)

        async def moved(*, share: float = 1.0, **rest: bool) -> int:
            moves.append((name, way, share))
            return int(await move(share=share, **rest)) if share == 1 else 1

        monkeypatch.setattr(engine, way, moved)
        monkeypatch.setattr(engine, "health", lambda: Health(state="ready", kv_memory=MAPPED))

    async with managed_engines(forced=alternate) as here:
        for engine, name in zip(both(here.engines), ("generator", "verifier"), strict=True):
            note(engine, name, "offload")
            note(engine, name, "restore")
        run = await here.drive(BEAM)
    changes = run.count(Restored)
    first = ["generator", "verifier"]
    for _ in range(min(2, changes)):
        gives, gets = first
        change, moves = moves[: 2 * PARTS], moves[2 * PARTS :]
        assert [share for name, way, share in change if (name, way) == (gives, "offload")] == [
            part / PARTS for part in range(1, PARTS + 1)
        ]
        returned = [share for name, way, share in change if (name, way) == (gets, "restore")]
        assert returned == [part / PARTS for part in range(1, PARTS + 1)]
        first.reverse()
    assert changes > 2
    for event in run.events:
        if isinstance(event, Offloaded):
            assert event.saved_bytes >= PARTS - 1
        elif isinstance(event, Restored):
            assert event.loaded_bytes >= PARTS - 1


async def test_a_refused_budget_is_not_recorded_as_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    split = share(HALF)
    async with managed_engines(forced=lambda load: split) as here:
        short = ShortMemory(both(here.engines)[0], monkeypatch)
        short.limit_bytes = HALF
        split = share(MORE)
        run = await here.drive(BEAM)
        assert short.requested.count(MORE) > 1
        assert run.splits[0] == (HALF, ROOM.kv_bytes - MORE)
        assert run.record["generator_bytes"] == HALF
        short.limit_bytes = None
        short.requested.clear()
        run = await here.drive(BEAM)
        assert short.requested == [MORE]
        assert run.splits[-1] == (MORE, ROOM.kv_bytes - MORE)


async def test_a_failed_budget_is_not_recorded_as_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    split = share(HALF)

    async def fail(kv_bytes: int) -> int:
        raise GenerationFailed("the device refuses")

    async with managed_engines(forced=lambda load: split) as here:
        monkeypatch.setattr(both(here.engines)[0], "budget", fail)
        split = share(MORE)
        run = await here.drive(BEAM)
        assert run.record["generator_bytes"] == HALF


async def test_an_unfilled_budget_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_engines(forced=alternate) as here:
        short = ShortMemory(both(here.engines)[0], monkeypatch)
        short.limit_bytes = HALF
        run = await here.drive(BEAM)
        assert run.count(Restored) > 2
        assert ROOM.kv_bytes in short.requested
        assert (HALF, ROOM.kv_bytes) in run.splits


async def test_a_restarted_engine_is_asked_for_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(die_after_steps=frozenset({2}), restart_s=0.3)
    async with managed_engines(forced=lambda load: share(HALF), verifier=faults) as here:
        short = ShortMemory(both(here.engines)[1], monkeypatch)
        await here.drive(BEAM)
        assert short.requested == [HALF]
