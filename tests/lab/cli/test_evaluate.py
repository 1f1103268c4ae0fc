"""`models eval` as a command, the daemon replaced by a script."""

import json
from pathlib import Path
from typing import Any

import pytest

from flashedge.client.async_client import AsyncClient
from flashedge.config import Config
from flashedge.daemon import control as daemon_control
from tests.support.cli_rig import Cli, with_daemon
from tests.support.fake_daemon import EvalDaemon, FakeDaemon, build_completion

SAMPLES = [build_completion("4", 0.9, 0.9), build_completion("5", 0.3), build_completion("4", 0.8)]


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    with_daemon(monkeypatch, FakeDaemon())


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    known = {"answer": 4, "family": "sum"}
    lines = [{"problem": f"{i} + 2?", "steps": i, **known} for i in range(1, 5)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def serve(monkeypatch: pytest.MonkeyPatch, **options: Any) -> EvalDaemon:
    daemon = EvalDaemon(SAMPLES, "4", {2: "4", 3: "5"}, **options)

    def connect(config: Config, name: str) -> AsyncClient:
        return AsyncClient("http://daemon", api_key=config.api_key, name=name, transport=daemon)

    monkeypatch.setattr(daemon_control, "connect_async", connect)
    return daemon


def test_a_table_a_report_and_a_plot(
    cli: Cli, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch)
    out = tmp_path / "out"
    command = ("models", "eval", "--problems", str(problems), "--output", str(out))
    done = cli.ends(0, "", *command, "--n", "3,2")
    for word in ("greedy", "pass@3", "beam-2 minus majority@2", "family sum: greedy", "1.000"):
        assert word in done.out
    report = json.loads((out / "report.json").read_text())
    assert report["problems"] == 4
    assert report["settings"]["n"] == [2, 3]
    assert report["accuracy"]["sample"]["value"] == pytest.approx(2 / 3, abs=1e-4)
    assert report["accuracy"]["beam-3"]["value"] == 0
    assert list(report["by_steps"]) == ["1", "2", "3", "4"]
    assert (out / "reliability.svg").read_text().startswith("<?xml")
    assert json.loads(cli(*command, "--n", "2,3", "--json").out) == report


def test_a_pair_without_a_verifier_is_refused(cli: Cli, problems: Path) -> None:
    command = ("models", "eval", "smollm2-135m", "--problems", str(problems))
    cli.ends(2, "smollm2-135m has no verifier", *command)


def test_a_second_call_goes_on_and_a_larger_limit_adds(
    cli: Cli, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("models", "eval", "--problems", str(problems), "--n", "2,3", "--json")
    first = serve(monkeypatch)
    assert json.loads(cli(*command, "--limit", "2").out)["problems"] == 2
    assert len(first.submitted) == 8
    second = serve(monkeypatch)
    assert json.loads(cli(*command, "--limit", "3").out)["problems"] == 3
    assert json.loads(cli(*command, "--limit", "1").out)["problems"] == 1
    assert {body["problem"] for body in second.submitted.values()} == {"3 + 2?"}


def test_a_lost_daemon_keeps_what_is_done(
    cli: Cli, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, failures={"4 + 2?": "engine_dead"})
    command = ("models", "eval", "--problems", str(problems), "--n", "2,3")
    cli.ends(3, "the same command resumes", *command)
    daemon = serve(monkeypatch)
    assert json.loads(cli(*command, "--json").out)["problems"] == 4
    assert "4 + 2?" in {body["problem"] for body in daemon.submitted.values()}


def test_problems_left_out_are_named(
    cli: Cli, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, failures={"1 + 2?": "context_length_exceeded"})
    done = cli.ends(0, "", "models", "eval", "--problems", str(problems), "--n", "2,3", "--json")
    assert json.loads(done.out)["failed"] == {"1": "it failed"}
    assert json.loads(done.out)["problems"] == 3
    assert "left out: problem 1" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--n", "4,0"),
        ("--n", "four"),
        ("--n", ""),
        ("--limit", "0"),
        ("--temperature", "9"),
        ("--seed", "-1"),
        ("nope",),
        ("--problems", "missing.jsonl"),
    ],
)
def test_bad_input_is_named(
    cli: Cli, problems: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    daemon = serve(monkeypatch)
    done = cli("models", "eval", "--problems", str(problems), *arguments)
    is_missing = arguments[-1] == "missing.jsonl"
    assert (done.code, done.out) == (5 if is_missing else 2, "")
    assert arguments[1 if is_missing else 0] in done.err
    assert daemon.submitted == {}
