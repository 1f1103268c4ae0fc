"""The service and the KV memory: what a run's record says, the switch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashedge.events import KvSplitChanged
from tests.support.runtime_rig import BEAM, ROOM
from tests.support.service_rig import Rig, Serve, log_of


async def solved(rig: Rig, spec: Any) -> tuple[dict[str, Any], list[KvSplitChanged]]:
    run = rig.service.submit(spec)
    result = await run.result()
    events = [event for _, event in await log_of(run)]
    return result, [event for event in events if isinstance(event, KvSplitChanged)]


async def test_the_record_says_what_the_split_used(serve: Serve) -> None:
    rig = await serve(config=ROOM)
    result, changes = await solved(rig, BEAM)
    assert "roofline" in result["kv"]["curves"]
    assert changes[0].curves == result["kv"]["curves"]
    assert result["kv"]["generator_bytes"] == changes[-1].generator_bytes
    stock, changes = await solved(rig, replace(BEAM, baseline=True))
    assert changes[-1].generator_bytes == changes[-1].verifier_bytes
    assert stock["tree"] == result["tree"]


@pytest.mark.parametrize("why", ["switched off", "the device keeps it"])
async def test_without_a_split_the_budgets_stay(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, config=ROOM, features={"kv_split": why != "switched off"})
    if why == "the device keeps it":
        kept = replace(rig.pair.generator.health(), kv_memory="kept")
        monkeypatch.setattr(rig.pair.generator, "health", lambda: kept)
    await rig.service.start()
    before = await rig.served.views()
    result, changes = await solved(rig, BEAM)
    assert result["kv"] == {"curves": None}
    assert changes == []
    after = await rig.served.views()
    assert [v.quota_blocks for v in after.values()] == [v.quota_blocks for v in before.values()]
    await rig.service.stop()
