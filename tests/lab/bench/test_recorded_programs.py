"""Programs of recorded answers, probes and trees are served in virtual time."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.scheduling import recorded_programs

ROW: dict[str, Any] = {
    "problem": "How many are 3 and 4?",
    "answer": "7",
    "texts": [r"\boxed{8}", *[r"So \boxed{7}"] * 7],
    "lens": [400, 100, 110, 120, 130, 140, 150, 160],
    "probe_tokens": 64,
    "probes": [[["7}", 3, 2]] + [["7}", 3, 2], ["8} Wait", 5, 2]] * 3],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "rows.jsonl"
    path.write_text((json.dumps(ROW) + "\n") * 4)
    return path


def serve(name: str, path: Path, variant: str) -> list[dict[str, Any]]:
    return recorded_programs.serve_load(name, path, None, 3, 1.0, ({"variant": variant}, 2.0, 0))


def test_a_vote_stops_when_it_is_sure(files: Path) -> None:
    whole, sure = serve("votes", files, "fcfs"), serve("votes", files, "default")
    assert {row["answer"] for row in (*whole, *sure)} == {"right"}
    assert [row["output_tokens"] for row in whole] == [1310] * 3
    assert all(row["output_tokens"] < 800 for row in sure)
    assert serve("votes", files, "default") == sure, "nothing is random"


def test_probes_end_a_chain_whose_doubts_do_not_count(files: Path) -> None:
    whole, probed = serve("chains", files, "fcfs"), serve("chains", files, "fcfs+exit")
    assert [row["output_tokens"] for row in whole] == [400] * 3
    assert [row["answer"] for row in (*whole, *probed)] == ["wrong-8"] * 3 + ["right"] * 3
    assert {row["output_tokens"] for row in probed} == {320 + 14}, (
        "four probes, and a segment beside the last"
    )
