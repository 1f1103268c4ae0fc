"""The card script of the figures on real problems: its stages, its time, and what it writes."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import DaemonError
from scripts.bench.real.records import parse_ways
from scripts.card import real_figures
from scripts.card.results import Results


def measure_stages(folder: Path, minutes: float) -> Results:
    results = Results(folder / "found.json", "bundled")
    asked = argparse.Namespace(
        output=folder,
        pair="bundled",
        problems=folder / "a.jsonl",
        more=[folder / "b.jsonl"],
        minutes=minutes,
        rehearse=False,
    )
    asyncio.run(real_figures.measure_stages(asked, results))
    return results


def test_the_smallest_table_comes_first_and_a_failed_stage_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    async def measure(**asked: Any) -> dict[str, int]:
        calls.append(asked)
        if asked["alone"]:
            raise DaemonError("gone")
        asked["target"].touch()
        return {"solved": 1}

    monkeypatch.setattr(real_figures, "measure", measure)
    results = measure_stages(tmp_path, 10)
    assert len(calls) == len(real_figures.STAGES)
    assert calls[0]["limits"] == [200, 100]
    assert calls[0]["ways"] == parse_ways(real_figures.SMALLEST)
    assert 0 < calls[1]["minutes"] < calls[0]["minutes"] < 10
    assert results.failed == ["seconds of runs alone"]
    assert (tmp_path / "table.md").read_text() == "There are no records.\n\nThere are no records.\n"


def test_what_no_time_is_left_for_is_skipped(tmp_path: Path) -> None:
    results = measure_stages(tmp_path, 0)
    assert set(results.skipped.values()) == {"no time was left"}
    assert len(results.skipped) == len(real_figures.STAGES)
