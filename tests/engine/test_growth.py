"""A daemon and its engines hold no more after many requests than after a few."""

from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.support.small_requests import SmallRequests, serve
from tests.support.table_sizes import count_entries, count_in_engine

KV_BYTES = 24 << 20
"""Of each engine: so little that all of it is in use before the first measurement."""
WARM_UP = 300
MOST_GROWTH_BYTES = 32 << 20
"""33 KB for each request. Measured: 7 MiB of the generator from the 200th plain request to the
1,000th, none of the verifier."""

WALKED = {
    "generator": {
        "core.scheduler.requests",
        "core.scheduler.running",
        "core.scheduler.drafts._jobs",
        "core.scheduler.drafts._of_drafts",
        "core.scheduler.drafts._requested",
        "core.scheduler.drafts._adopted",
        "core.scheduler.drafts._board._levels",
        "worker.worker.model_runner.requests",
        "worker.worker.model_runner.input_batch.logitsprocs.non_argmax_invariant[]._rows",
    },
    "verifier": {"core.scheduler.requests", "worker.worker.model_runner.requests"},
    "daemon": {
        "service._runs",
        "service._tasks",
        "service._schedulers[].programs._programs",
        "service._loader._loaded[]._protocols()._serving.output_processor.request_states",
    },
}
"""Some of the tables that must be among those that are counted."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallRequests]:
    home = tmp_path_factory.mktemp("growth")
    async with serve(home, kv_bytes=KV_BYTES) as served:
        yield served


async def count_all(daemon: SmallRequests) -> dict[str, dict[str, int]]:
    """Entries by process and path, once all requests have ended."""
    await daemon.settle()
    generator, verifier = daemon.engines
    return {
        "generator": await count_in_engine(generator),
        "verifier": await count_in_engine(verifier),
        "daemon": count_entries({"service": daemon.service}),
    }


async def test_no_table_grows_with_the_requests(daemon: SmallRequests) -> None:
    """In the engines' processes and in the daemon's. A sixth of the requests is cancelled."""
    counts = []
    for _ in range(3):
        answered = await daemon.send_plain(48) + await daemon.send_searches(18)
        assert 0 < answered < 66, "some are cancelled, others are not"
        counts.append(await count_all(daemon))
    for process, tables in WALKED.items():
        assert tables <= counts[0][process].keys()
    _, second, third = counts
    grown = {
        f"{process}: {path}": (second[process].get(path, 0), entries)
        for process, found in third.items()
        for path, entries in found.items()
        if entries > second[process].get(path, 0)
    }
    assert not grown


def count_own_bytes(engine: Any) -> int:
    """The memory of an engine's process that is in use and belongs to no file."""
    process = psutil.Process(engine.health().pid).memory_info()
    return int(process.rss - process.shared)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["plain", "searches"])
async def test_an_engine_takes_little_more_memory(daemon: SmallRequests, kind: str) -> None:
    """For a thousand requests more, after some hundred. Twelve minutes."""
    send = daemon.send_plain if kind == "plain" else daemon.send_searches
    await send(WARM_UP)
    await daemon.settle()
    before = [count_own_bytes(engine) for engine in daemon.engines]
    await send(1000)
    await daemon.settle()
    after = [count_own_bytes(engine) for engine in daemon.engines]
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert max(grown) < MOST_GROWTH_BYTES, grown
