"""The card script of the figures on real problems: its stages, its time, and what it writes."""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flashedge.errors import DaemonError
from scripts.bench.real.records import FinishedPath, Record, parse_ways
from scripts.card import real_figures
from scripts.card.results import Results

PAIR_FIELDS = ("name", "models", "generator", "verifier", "temperature", "max_path_tokens", "seed")
PATH = FinishedPath(answer="4", right=True, score=0.5, scores=(0.5,), tokens=9, finish="stop")


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
    """The runs alone fail twice. An engine dies in the first stage, and a run fails in the last."""
    calls: list[dict[str, Any]] = []

    async def measure(**asked: Any) -> dict[str, int]:
        calls.append(asked)
        asked["target"].touch()
        if asked["alone"] or len(calls) == 1:
            raise DaemonError("gone")
        return {"solved": 1, "failed": int(asked["limits"] == [None, None])}

    monkeypatch.setattr(real_figures, "measure", measure)
    results = measure_stages(tmp_path, 10)
    repeated = [stage for stage in real_figures.STAGES for _ in range(2)]
    expected = [*repeated[:4], *repeated[4:-2:2], *repeated[-2:]]
    assert [call["ways"] for call in calls] == [parse_ways(stage.ways) for stage in expected]
    assert calls[0]["limits"] == [200, 100]
    assert calls[0]["ways"] == parse_ways(real_figures.SMALLEST)
    assert 0 < calls[2]["minutes"] < calls[0]["minutes"] < 10
    assert results.failed == ["seconds of runs alone", "seconds of runs alone, again"]


def test_a_page_is_written_when_the_first_stage_dies_and_for_each_stage_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way of a later stage that has solved nothing yet leaves the first table as it is."""
    done = [
        Record(
            pair=dict.fromkeys(PAIR_FIELDS, 0),
            file="a",
            place=place,
            problem=str(place),
            id=place,
            way=way,
            alone=False,
            known="4",
            machine={},
            paths=(PATH,) * 16 if way == "samples-16" else (),
        )
        for place in range(3)
        for way in ("greedy", "samples-16", "beam-16")
    ]
    pages: list[str] = []

    async def measure(**asked: Any) -> dict[str, int]:
        if (tmp_path / "table.md").exists():
            pages.append((tmp_path / "table.md").read_text())
        if not asked["target"].exists():
            lines = (json.dumps(asdict(record)) + "\n" for record in done)
            asked["target"].write_text("".join(lines))
            raise DaemonError("gone")
        return {"failed": 0}

    monkeypatch.setattr(real_figures, "measure", measure)
    measure_stages(tmp_path, 10)
    (first, *_, last) = pages
    assert "# the smallest table\n" in first
    assert "## Rehearsal: a, 3 problems" in first
    assert "# n = 4\n" not in first
    assert [last.count(f"## Rehearsal: a, {count} problems") for count in (3, 0)] == [1, 4]


def test_what_no_time_is_left_for_is_skipped(tmp_path: Path) -> None:
    results = measure_stages(tmp_path, 0)
    assert set(results.skipped.values()) == {"no time was left"}
    assert len(results.skipped) == len(real_figures.STAGES)
