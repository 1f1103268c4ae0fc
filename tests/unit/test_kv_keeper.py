"""The KV memory while runs go on, on simulated engines: it moves, and no tree changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from flashedge.engine.sim.clock import run_virtual
from flashedge.engine.sim.engine_loop import SimEngine
from flashedge.engine.sim.pair import Faults
from flashedge.events import Event, KvSplitChanged, Offloaded, Restored
from flashedge.runtime.drive.driver import Outcome
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.kv.build import build_cost_from_view
from flashedge.runtime.kv.curves import Curves
from flashedge.runtime.kv.manager import KvManager
from flashedge.runtime.request.spec import RunSpec
from flashedge.scheduling.costs.curves import RooflineCurve
from flashedge.scheduling.costs.roofline import RTX_4090
from flashedge.scheduling.kv.split import HostLink, KvSplit
from flashedge.scheduling.kv.stages import Workload
from tests.contracts.engine_rig import ask, generate
from tests.unit.runtime_rig import (
    BEAM,
    BEST,
    CONFIG,
    ROOM,
    TINY,
    assert_nothing_left,
    both,
    drive,
    driver_of,
    sim_engines,
)

DVTS = replace(BEAM, strategy="dvts", n=8, seed=3)
WIDE = replace(BEAM, n=32)
LINK = HostLink(bytes_per_s=1e12, capacity_bytes=1 << 30)
IN_TURN = KvSplit(
    generator_bytes=ROOM.kv_bytes,
    verifier_bytes=ROOM.kv_bytes,
    decode_batch=8,
    prefill_batch=8,
    generate_s=0.0,
    verify_s=0.0,
    offload=True,
    generator_saved=True,
    verifier_saved=True,
)


def in_turn(load: Workload | None) -> KvSplit:
    return IN_TURN


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    outcome: Outcome
    events: list[Event]
    record: dict[str, object]

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)


class Kept:
    """Engines whose pools are all of the memory each, and their keeper."""

    def __init__(self, engines: Engines, keeper: KvManager) -> None:
        self.engines, self.keeper = engines, keeper
        self.shared = replace(
            engines,
            generator=keeper.wrap_generator(engines.generator),
            verifier=keeper.wrap_verifier(engines.verifier),
        )

    async def drive(self, spec: RunSpec) -> Told:
        events: list[Event] = []
        with self.keeper.join(events.append, baseline=spec.baseline) as memory:
            driver = driver_of(self.shared, spec, events.append, watch=memory.watch)
            outcome = await driver.run()
        return Told(outcome=outcome, events=events, record=memory.record)


@asynccontextmanager
async def kept(
    *,
    kv_bytes: int = ROOM.kv_bytes,
    link: HostLink | None = None,
    forced: object = None,
    verifier: Faults | None = None,
) -> AsyncIterator[Kept]:
    engines = sim_engines(config=ROOM, verifier=verifier)
    views = [await engine.view() for engine in both(engines)]
    curve = RooflineCurve(device=RTX_4090, shape=TINY)
    costs = [build_cost_from_view(curve, view, ROOM.max_model_len, 64) for view in views]
    curves = Curves(generator=curve, verifier=curve, link_bytes_per_s=1e12, source="a test")
    keeper = KvManager(
        engines.generator,
        engines.verifier,
        (costs[0], costs[1]),
        curves,
        kv_bytes=kv_bytes,
        link=link,
        forced=forced,  # type: ignore[arg-type]
    )
    await keeper.start()
    yield Kept(engines, keeper)
    await keeper.wait_settled()
    await keeper.stop()
    await assert_nothing_left(engines)


async def plain(spec: RunSpec) -> Outcome:
    return (await drive(sim_engines(config=CONFIG), spec)).outcome


@pytest.mark.parametrize("spec", [BEAM, WIDE, DVTS, BEST], ids=lambda s: f"{s.strategy}-{s.n}")
def test_the_split_follows_and_the_tree_stays(spec: RunSpec) -> None:
    async def main() -> None:
        async with kept(kv_bytes=2 * ROOM.kv_bytes // 3) as here:
            told = await here.drive(spec)
            assert told.outcome == await plain(spec)
            record = told.record
            assert record["curves"] == "a test"
            last = [e for e in told.events if isinstance(e, KvSplitChanged)][-1]
            assert last.curves == "a test"
            assert record["generator_bytes"] == last.generator_bytes
            assert record["split_moves"] == told.count(KvSplitChanged) - 1
            assert (here.keeper.moves > 0) == (spec is WIDE), "8 paths fit as they stand"

    run_virtual(main())


def test_it_moves_less_where_a_move_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def moves() -> int:
        async with kept(kv_bytes=4 * ROOM.kv_bytes // 5) as here:
            assert (await here.drive(WIDE)).outcome == await plain(WIDE)
            return here.keeper.moves

    at_once = run_virtual(moves())
    budget = SimEngine.budget

    async def slow(self: SimEngine, kv_bytes: int) -> int:
        await asyncio.sleep(100.0)
        return await budget(self, kv_bytes)

    monkeypatch.setattr(SimEngine, "budget", slow)
    assert 0 < run_virtual(moves()) < at_once


def test_both_quotas_stay_within_the_memory() -> None:
    """At no time do they add up to more than there is, however often it moves."""

    async def main() -> None:
        turn, held = 0, list[int]()

        def moving(load: Workload | None) -> KvSplit:
            nonlocal turn
            turn += 1
            share = (2 + turn % 3) * ROOM.kv_bytes // 6
            return replace(
                IN_TURN,
                generator_bytes=share,
                verifier_bytes=ROOM.kv_bytes - share,
                offload=False,
            )

        async with kept(forced=moving) as here:

            def checked(engine: SimEngine) -> None:
                budget = engine.budget

                async def watched(kv_bytes: int) -> int:
                    granted = await budget(kv_bytes)
                    views = [await e.view() for e in both(here.engines)]
                    held.append(sum(v.quota_blocks * v.block_bytes for v in views))
                    return granted

                engine.budget = watched  # type: ignore[method-assign]

            for engine in both(here.engines):
                checked(engine)
            stories = await asyncio.gather(*(here.drive(s) for s in (BEAM, DVTS)))
            assert here.keeper.moves > 3
            assert max(held) <= ROOM.kv_bytes
            assert [s.outcome for s in stories] == [await plain(BEAM), await plain(DVTS)]

    run_virtual(main())


@pytest.mark.parametrize("saved", [True, False])
def test_in_turn_with_several_runs_and_a_chat(saved: bool) -> None:
    async def main() -> None:
        split = replace(IN_TURN, generator_saved=saved, verifier_saved=saved)
        async with kept(forced=lambda load: split) as here:
            chat = ask(here.engines.generator, BEAM.problem, seed=9, max_tokens=30)
            expected = await generate(here.shared.generator, chat)
            stories = asyncio.gather(*(here.drive(s) for s in (BEAM, DVTS, BEST)))
            await asyncio.sleep(0.02)
            said = await generate(here.shared.generator, chat)
            told = await stories
            assert said.token_ids == expected.token_ids
            assert [t.outcome for t in told] == [await plain(s) for s in (BEAM, DVTS, BEST)]
            assert here.keeper.offloads > 4
            assert told[0].count(Offloaded) > 2
            assert told[0].count(Restored) > 2
            moved = sum(e.saved_bytes for e in told[0].events if isinstance(e, Offloaded))
            assert (moved > 0) == saved
            assert told[0].record["offload"] is True

    run_virtual(main())


def test_no_turns_are_taken_while_a_guest_is_there() -> None:
    """A chat without end must not keep a run from being scored."""

    async def main() -> None:
        async with kept(kv_bytes=ROOM.kv_bytes // 2 + 8192, link=LINK) as here:
            guest = here.keeper.wrap_chat_generator(here.engines.generator)
            chat = ask(here.engines.generator, BEAM.problem, seed=9, max_tokens=40)

            async def chatting() -> None:
                while True:
                    await generate(guest, chat)

            for _ in range(2):
                endless = [asyncio.create_task(chatting()) for _ in range(3)]
                told = await here.drive(BEAM)
                assert told.outcome == await plain(BEAM)
                assert told.count(Offloaded) == 0
                for task in endless:
                    task.cancel()
                await asyncio.wait(endless)

    run_virtual(main())


def test_a_verifier_that_dies_while_turns_are_taken() -> None:
    async def main() -> None:
        faults = Faults(die_after_steps=frozenset({2, 5}), restart_s=0.3)
        async with kept(forced=in_turn, verifier=faults) as here:
            told = await here.drive(BEAM)
            assert told.outcome == await plain(BEAM)
            assert here.engines.verifier.health().restarts == 2

    run_virtual(main())


def test_the_stock_twin_has_half_and_half() -> None:
    async def main() -> None:
        async with kept(forced=in_turn) as here:
            told = await here.drive(replace(BEAM, baseline=True))
            changes = [e for e in told.events if isinstance(e, KvSplitChanged)]
            half = ROOM.kv_bytes // 2
            assert {(e.generator_bytes, e.verifier_bytes, e.offload) for e in changes} == {
                (half, half, False)
            }
            await here.keeper.wait_settled()
            assert told.count(Offloaded) == 0

    run_virtual(main())


def test_offload_is_chosen_where_it_is_faster_and_only_there() -> None:
    """The same run, by a fast link and by one over which nothing is worth its way."""

    async def main() -> None:
        spec = replace(BEAM, n=16)
        for link, offloads in (
            (LINK, True),
            (replace(LINK, bytes_per_s=1.0, switch_s=10.0), False),
            (None, False),
        ):
            async with kept(kv_bytes=ROOM.kv_bytes // 2 + 8192, link=link) as here:
                told = await here.drive(spec)
                assert (told.count(Offloaded) > 0) == offloads
                assert told.outcome == await plain(spec)

    run_virtual(main())
