"""The service and the KV memory: what a run's record says, the switch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.events import KvSplitChanged
from scripts.lab.sim.clock import run_virtual
from tests.support.runtime_rig import BEAM, ROOM
from tests.support.service_rig import Rig, log_of


async def solved(rig: Rig, spec: Any) -> tuple[dict[str, Any], list[KvSplitChanged]]:
    run = rig.service.submit(spec)
    result = await run.result()
    events = [event for _, event in await log_of(run)]
    return result, [event for event in events if isinstance(event, KvSplitChanged)]


def test_the_record_says_what_the_split_used(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, config=ROOM)
        await rig.service.start()
        result, changes = await solved(rig, BEAM)
        assert "roofline" in result["kv"]["curves"]
        assert changes[0].curves == result["kv"]["curves"]
        assert result["kv"]["generator_bytes"] == changes[-1].generator_bytes
        stock, changes = await solved(rig, replace(BEAM, baseline=True))
        assert changes[-1].generator_bytes == changes[-1].verifier_bytes
        assert stock["tree"] == result["tree"]
        await rig.service.stop()

    run_virtual(main())


@pytest.mark.parametrize("why", ["switched off", "the device keeps it"])
def test_without_a_split_the_budgets_stay(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, config=ROOM, features={"kv_split": why != "switched off"})
        if why == "the device keeps it":
            health = rig.pair.generator.health()
            kept = replace(health, kv_memory="kept")
            monkeypatch.setattr(rig.pair.generator, "health", lambda: kept)
        await rig.service.start()
        before = [await engine.view() for engine in (rig.pair.generator, rig.pair.verifier)]
        result, changes = await solved(rig, BEAM)
        assert result["kv"] == {"curves": None}
        assert changes == []
        after = [await engine.view() for engine in (rig.pair.generator, rig.pair.verifier)]
        assert [v.quota_blocks for v in after] == [v.quota_blocks for v in before]
        await rig.service.stop()

    run_virtual(main())
