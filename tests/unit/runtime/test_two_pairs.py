"""Two loaded pairs: what runs on one changes nothing of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flashedge.answers.workers.mathematics import MathGrader
from flashedge.engine.http_requests import PlainAsk
from flashedge.errors import QueueFull
from flashedge.runtime.run import Run, RunStatus
from flashedge.runtime.served_pair import ServedPair
from flashedge.runtime.service import Service
from flashedge.scheduling.programs.admission import Capacity
from tests.support.runtime_rig import BEAM, sim_engines
from tests.support.service_rig import SLOW, Rig, SimPair, ended

ROOM = Capacity(kv_tokens=1 << 20, max_running=8, useful_sequences=256)
NARROW = replace(ROOM, useful_sequences=1)


class PairOfRoom(ServedPair):
    room = ROOM

    async def _tune(self) -> None:
        await super()._tune()
        self.capacity = self.room


@asynccontextmanager
async def serve_two(home: Path, **settings: object) -> AsyncIterator[Service]:
    """A service with the pairs "wide" and "narrow" loaded. The narrow one runs one search."""
    rig = Rig(home, load=False, loaded_pairs=2, **settings)

    def open_pair(name: str) -> ServedPair:
        engines = SimPair(sim_engines())
        pair = PairOfRoom(replace(rig.served._pair, name=name), engines, rig.config)
        pair.room = NARROW if name == "narrow" else ROOM
        return pair

    service = Service(rig.config, open_pair, None, rig.store, MathGrader())
    await service.start()
    async with AsyncExitStack() as used:
        for name in ("wide", "narrow"):
            await used.enter_async_context(service.use_pair(name))
        yield service
    await service.stop()


def submit(service: Service, pair: str, seed: int) -> Run:
    run = service.submit(replace(SLOW, pair=pair, seed=seed))
    assert isinstance(run, Run)
    return run


async def test_each_pair_runs_as_many_searches_as_it_has_room_for(tmp_path: Path) -> None:
    async with serve_two(tmp_path, max_running=8, queue_limit=8) as service:
        wide = [submit(service, "wide", seed) for seed in range(3)]
        narrow = [submit(service, "narrow", seed) for seed in range(3)]
        late = submit(service, "wide", 9)
        states = service.pairs()
        assert (states["wide"].running, states["wide"].queued) == (4, 0)
        assert (states["narrow"].running, states["narrow"].queued) == (1, 2)
        assert service.counts == {"running": 5, "queued": 2}
        assert [run.estimate.position for run in narrow] == [None, 0, 1]
        for run in (*wide, *narrow, late):
            assert await ended(run) == RunStatus.FINISHED


async def test_the_full_queue_of_one_pair_refuses_nothing_on_the_other(tmp_path: Path) -> None:
    async with serve_two(tmp_path, max_running=8, queue_limit=1) as service:
        runs = [submit(service, "narrow", seed) for seed in range(2)]
        with pytest.raises(QueueFull, match="1 runs are running and 1 are waiting"):
            service.check_queue("narrow")
        with pytest.raises(QueueFull):
            submit(service, "narrow", 3)
        service.check_queue("wide")
        runs += [submit(service, "wide", seed) for seed in range(2)]
        assert service.pairs()["wide"].running == 2
        for run in runs:
            assert await ended(run) == RunStatus.FINISHED


async def test_the_status_tells_the_programs_and_the_engines_of_each_pair(tmp_path: Path) -> None:
    async with serve_two(tmp_path, max_running=8, queue_limit=8) as service:
        runs = [submit(service, pair, 1) for pair in ("narrow", "narrow", "wide")]
        standings = service.scheduling.programs
        assert [(s.pair, s.key, s.place) for s in standings] == [
            ("narrow", runs[0].id, None),
            ("narrow", runs[1].id, 0),
            ("wide", runs[2].id, None),
        ]
        views = {name: await state.read_views() for name, state in service.pairs().items()}
        assert set(views) == {"wide", "narrow"}
        assert all(set(view) == {"generator", "verifier"} for view in views.values())
        for run in runs:
            assert await ended(run) == RunStatus.FINISHED


async def test_engines_get_the_order_of_their_own_programs(tmp_path: Path) -> None:
    async with serve_two(tmp_path, max_running=8, queue_limit=8) as service:
        sent: dict[str, list[str]] = {"wide": [], "narrow": []}
        for name, pair in service._loader._loaded.items():
            rank = pair.rank_programs

            async def note(keys: list[str], name: str = name, rank: object = rank) -> None:
                sent[name] += keys

            pair.rank_programs = note  # type: ignore[method-assign, assignment]
        runs = {name: submit(service, name, 1) for name in sent}
        for run in runs.values():
            assert await ended(run) == RunStatus.FINISHED
        assert {name: set(keys) for name, keys in sent.items()} == {
            name: {run.id} for name, run in runs.items()
        }


async def test_a_plain_request_joins_the_programs_of_its_pair(tmp_path: Path) -> None:
    async def abort() -> None: ...

    async with serve_two(tmp_path, max_running=8, queue_limit=8) as service:
        ask = PlainAsk(program="chat", pair="wide", max_tokens=8)
        with service._loader._plain.open(ask, abort):
            assert [s.pair for s in service.scheduling.programs] == ["wide"]
            run = submit(service, "narrow", 1)
            assert [s.key for s in service.scheduling.programs] == ["chat", run.id]
        assert await ended(run) == RunStatus.FINISHED
        assert BEAM.pair not in service.pairs()
