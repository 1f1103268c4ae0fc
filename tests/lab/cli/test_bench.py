"""`flashedge bench flashtts`: what is refused, and what is warned of."""

from pathlib import Path

import pytest

from flashedge.daemon import files as daemon_files
from scripts.lab.cli.bench import warn_unpaired
from tests.support.cli_rig import Cli


@pytest.fixture
def problems(tmp_path: Path) -> str:
    file = tmp_path / "problems.jsonl"
    file.write_text('{"problem": "2 + 2?", "answer": "4"}\n')
    return str(file)


def test_what_is_refused(cli: Cli, problems: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, said in (
        ((), "--problems"),
        (("--problems", problems, "--rungs", "+Q"), "there is no rung '+Q'"),
        (("--problems", problems, "--kv", "much"), "'much' is no size"),
        (("--problems", problems, "--n", "x"), "--n is 'x'"),
        (("--problems", problems, "--pair", "nobody"), "there is no pair 'nobody'"),
    ):
        assert cli.ends(2, said, "bench", "flashtts", *flags).out == ""
    done = cli.ends(5, "can't read", "bench", "flashtts", "--problems", problems + "x")
    assert done.out == ""
    monkeypatch.setattr(daemon_files, "find_holder", lambda config: 4242)
    cli.ends(4, "process 4242", "bench", "flashtts", "--problems", problems)


@pytest.mark.parametrize("shares", [[None, 1.0], [None, 0.75, 1.0], []])
def test_a_benchmark_of_other_trees_is_named(
    capfd: pytest.CaptureFixture[str], shares: list[float | None]
) -> None:
    warn_unpaired([{"same_trees": share} for share in shares])
    assert ("Only 75% of a rung's trees" in capfd.readouterr().err) == (0.75 in shares)
