"""Programs of recorded answers, probes and trees are served in virtual time."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.scheduling import recorded_programs
from scripts.bench.scheduling.recorded_programs import BUILDS, Load, compare_accuracy
from scripts.bench.smoke import SMALL

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


def serve(name: str, path: Path, variant: str, **way: Any) -> list[dict[str, Any]]:
    load = Load(name=name, path=path, limit=None, programs=3, max_running=2)
    task = ({"variant": variant, **way}, 20.0, 0)
    return recorded_programs.serve_load(load, 1.0, task)


def test_a_vote_stops_when_it_is_sure(files: Path) -> None:
    whole, sure = serve("votes", files, "fcfs"), serve("votes", files, "default")
    assert {row["answer"] for row in (*whole, *sure)} == {"right"}
    assert [row["output_tokens"] for row in whole] == [1310] * 3
    assert all(row["output_tokens"] < 800 for row in sure)
    assert serve("votes", files, "default") == sure, "nothing is random"


def test_fewer_paths_and_no_admission(files: Path) -> None:
    """Two of three programs have room at once."""
    admitted, at_once = (
        serve("votes", files, "gang"),
        serve("votes", files, "gang", is_admitted=False),
    )
    assert [row["wait_s"] > 0 for row in admitted] == [False, False, True]
    assert [row["wait_s"] for row in at_once] == [0.0] * 3
    fewer = serve("votes", files, "fcfs", cap=4)
    assert [row["output_tokens"] for row in fewer] == [400 + 100 + 110 + 120] * 3


def test_trees_are_searched_with_fewer_rollouts_or_to_an_exit() -> None:
    path = SMALL / "recorded_trees.jsonl"
    whole, fewer = serve("mcts", path, "fcfs"), serve("mcts", path, "fcfs", cap=4)
    for most, some in zip(whole, fewer, strict=True):
        assert 0 < some["output_tokens"] < most["output_tokens"]
    exits = serve("mcts", path, "fcfs+exit")
    assert sum(r["output_tokens"] for r in exits) < sum(r["output_tokens"] for r in whole)


def test_deadlines_are_by_the_share_of_right_answers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    right, wrong = r"\boxed{7}", r"\boxed{8}"
    kinds = [[right] * 8, [right] * 4 + [wrong] * 4, [wrong] * 8]
    rows = [{**ROW, "texts": texts} for texts in kinds]
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *rows)))
    assert BUILDS["votes"](path, None).factors == {3: 1.0, 4: 2.0, 5: 3.0}
    assert BUILDS["chains"](path, 3).factors == {0: 1.0, 1: 2.0, 2: 3.0}


def test_accuracy_is_compared_at_the_same_attainment() -> None:
    """Of three points without exits the default meets as many deadlines as one in their middle."""
    points = {
        "fcfs": [(0.6, 0.80)],
        "fcfs, no admission": [(0.7, 0.80)],
        "fcfs, 4": [(0.9, 0.70)],
        "default": [(0.8, 0.76)],
        "default, no admission": [(0.8, 0.0)],
    }
    assert compare_accuracy(points)[0] == pytest.approx(1.0)
    del points["fcfs, no admission"]
    assert compare_accuracy(points)[0] == pytest.approx(
        100 * (0.76 - (0.80 - 0.1 * 2 / 3)), abs=0.01
    )


def test_probes_end_a_chain_whose_doubts_do_not_count(files: Path) -> None:
    whole, probed = serve("chains", files, "fcfs"), serve("chains", files, "fcfs+exit")
    assert [row["output_tokens"] for row in whole] == [400] * 3
    assert [row["answer"] for row in (*whole, *probed)] == ["wrong-8"] * 3 + ["right"] * 3
    assert {row["output_tokens"] for row in probed} == {320 + 14}, (
        "four probes, and a segment beside the last"
    )


def test_probes_that_differ_in_spelling_agree_and_missing_ones_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    probes = [["8}", 3, 2], ["8.0}", 3, 2], ["8.00}", 3, 2], ["9}", 3, 2]]
    path.write_text(json.dumps({**ROW, "probes": [probes]}) + "\n")
    first = serve("chains", path, "fcfs+exit")[0]
    assert (first["answer"], first["output_tokens"]) == ("wrong-8", 256 + 9)
    path = tmp_path / "fewer.jsonl"
    path.write_text(json.dumps({**ROW, "probes": [probes[:1]]}) + "\n")
    first = serve("chains", path, "fcfs+exit")[0]
    assert (first["answer"], first["output_tokens"]) == ("wrong-8", 400 + 3 + 5)
