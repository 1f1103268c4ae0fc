"""`scripts.bench.real` as it is run, against a daemon process whose engines are simulated."""

import json
import subprocess
from pathlib import Path

import pytest

from scripts.bench.real.__main__ import main
from scripts.bench.real.records import read_records
from tests.support.commands import list_runs


def test_solve_resume_and_print(
    daemon: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems, target = tmp_path / "left.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"problem": f"How many are left of {i}?", "answer": i}) for i in range(3)]
    problems.write_text("\n".join(lines))

    def run(*more: str, ways: str = "greedy,vote-2,weighted-4,beam-2") -> dict[str, int]:
        files = ("--problems", str(problems), "--output", str(target))
        main(["run", *files, "--pair", "bundled", "--ways", ways, *more])
        found: dict[str, int] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    first = run("--limit", "2")
    assert (first["solved"], first["failed"], first["left"]) == (6, 0, 0)
    stopped = run("--minutes", "0")
    assert (stopped["solved"], stopped["left"]) == (0, 3)
    assert run()["solved"] == 3
    assert run()["solved"] == 0
    assert run("--alone", "--limit", "1", ways="vote-2,beam-2")["solved"] == 2
    assert not list_runs()

    records = read_records([target])
    samples = [record for record in records if record.way == "samples-4"]
    assert [len(record.paths) for record in samples] == [4, 4, 4]
    for record in samples:
        assert record.tree_tokens == sum(path.tokens for path in record.paths)
        assert record.verifier_tokens > 0
        assert all(path.scores and path.score is not None for path in record.paths)
    assert all(record.verifier_tokens == 0 for record in records if record.way == "greedy")

    main(["page", str(target), "--ways", "vote-2,beam-2"])
    page = capsys.readouterr().out
    assert "## Rehearsal: left, 3 problems" in page
    assert " of 1 |" in page

    with pytest.raises(SystemExit, match="1"):
        run("--seed", "1")
    assert "this run has seed 1" in capsys.readouterr().err
