"""Tables of a ladder: which rungs are compared, and which problems count."""

import json
from pathlib import Path

import pytest

from scripts.bench.flashtts import ladder_page, study
from scripts.bench.flashtts.ladder_page import BEST, NAMES, build_rows, build_tables, read_runs
from scripts.bench.flashtts.ladder_real import DID
from scripts.lab.benchmark.live import LiveRun
from tests.lab.load_rig import build_live_run

HERE = "here"


def run(rung: str, problem: int, seconds: float, tree: str = "t") -> LiveRun:
    times = {"seconds": seconds, "generate_s": seconds / 2, "verify_s": seconds / 2}
    where = {"rung": rung, "kv": "34MiB", "n": 16, "problem": problem, "tree": tree}
    return build_live_run(**where, **times, goodput=100 / seconds, answer="4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two problems on every rung, each rung twice as fast as the one before, the second from the
    last rung to the first; a third cut off."""
    runs = [
        run(name, problem, 64 / 2**place * (problem + 1))
        for problem in (1, 0)
        for place, name in list(enumerate(NAMES))[:: 1 - 2 * problem]
    ]
    runs.append(run("stock", 2, 1000.0))
    lines: list[dict[str, object]] = [{"settings": {}}]
    for one in runs:
        did = {"preemptions": 3, "split_moves": 2, "offloads": 1} if one.rung != "stock" else {}
        lines.append({**one.to_json(), **did})
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_gains_are_of_each_problem_and_of_the_rung_before(folder: Path) -> None:
    cells = build_rows(read_runs(folder), {(0, "4"): True, (1, "4"): False}, HERE)
    assert list(cells) == [("34MiB", 16)]
    rows = cells["34MiB", 16]
    assert list(rows) == [row["rung"] for row in rows.values()] == NAMES
    assert {row["problems"] for row in rows.values()} == {2}
    assert [row["speedup"]["median"] for row in rows.values()] == [1, 2, 4, 8, 16, 32, 64]
    assert (rows["stock"]["step"], rows["stock"]["preemptions"]) == (None, 0)
    assert [rows[name]["step"]["median"] for name in NAMES[1:]] == [2, 2, 2, 2, 2, 4]
    assert [rows[BEST][name] for name in ("preemptions", "split_moves", "offloads")] == [3, 2, 1]
    assert rows[BEST]["right"] == 0.5


def test_a_rung_that_was_not_run_is_a_dash(folder: Path) -> None:
    file = folder / "runs.jsonl"
    kept = [line for line in file.read_text().splitlines() if '"+P+M"' not in line]
    file.write_text("\n".join(kept))
    cells = build_rows(read_runs(folder), {}, HERE)
    assert list(cells["34MiB", 16]) == [name for name in NAMES if name != "+P+M"]
    assert cells["34MiB", 16][BEST]["step"] is None
    over_suffix, over_stock = build_tables(cells)[1:3]
    assert "| 4.00 (4.00–4.00) | - | 16.00 (16.00–16.00) |" in over_stock
    assert "| 2.00 (2.00–2.00) | - | 8.00 (8.00–8.00) |" in over_suffix


def test_the_tables_tell_of_trees_that_differ(folder: Path) -> None:
    found = read_runs(folder)
    page = build_tables(build_rows(found, {}, HERE))
    assert "| 34MiB | 16 | here | 2 | 2.00 (2.00–2.00) | 4.00 (4.00–4.00) |" in page[1]
    assert "| - | 100% |" in page[-1]
    found["34MiB", 16].append((run("+P", 1, 3.0, tree="another"), dict.fromkeys(DID, 0)))
    assert "| - | 50% |" in build_tables(build_rows(found, {}, HERE))[-1]


def test_what_is_on_the_page_and_not_in_the_folder_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    for module in (ladder_page, study):
        monkeypatch.setattr(module, "OUTPUT", docs)

    def page(on: str) -> list[tuple[object, ...]]:
        monkeypatch.setattr("sys.argv", ["ladder_page", str(folder), "--on", on])
        ladder_page.main()
        rows = json.loads((docs / "ladder.json").read_text())["rungs"]
        return [(row["n"], row["on"]) for row in rows if row["rung"] == "stock"]

    assert page("one machine") == [(16, "one machine")]
    file = folder / "runs.jsonl"
    whole = file.read_text()
    file.write_text(whole.replace('"n": 16', '"n": 4'))
    assert page("another") == [(4, "another"), (16, "one machine")]
    file.write_text(whole)
    assert page("a third") == [(4, "another"), (16, "a third")]
    with pytest.raises(SystemExit, match="ladder_real"):
        read_runs(docs)
