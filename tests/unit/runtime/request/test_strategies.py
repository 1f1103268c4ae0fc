"""Strategies, their options and early exit as the command line and HTTP take them."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.search.step_rules import EntropyRule
from tests.support.api_rig import client_of
from tests.support.cli_rig import Cli, cli_for, with_daemon
from tests.support.fake_daemon import FakeDaemon
from tests.support.fake_service import FakeService


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    return with_daemon(monkeypatch, FakeDaemon())


# ---------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--strategy self-consistency-8", {"strategy": "self_consistency", "n": 8}),
        ("--strategy best-of-n-4", {"strategy": "best_of_n", "n": 4}),
        (
            "--set step_rule=entropy --set step_entropy=0.5 --set min_step_tokens=8",
            {"step_rule": "entropy", "step_entropy": 0.5, "min_step_tokens": 8},
        ),
        ("--early-exit", {"early_exit": True}),
        ("--no-early-exit", {"early_exit": False}),
        (
            "--set early_exit.thresholds.entropy=0.8 --set early_exit.thresholds.reward=1"
            " --set early_exit.detect=3",
            {"early_exit": {"detect": 3, "thresholds": {"entropy": 0.8, "reward": 1}}},
        ),
        ("--early-exit --set early_exit.policy=every_5", {"early_exit": {"policy": "every_5"}}),
        (
            "--set c=0.5 --set prior=uniform --set beside=false",
            {"options": {"c": 0.5, "prior": "uniform", "beside": False}},
        ),
    ],
)
def test_flags(cli: Cli, daemon: FakeDaemon, flags: str, expected: dict[str, Any]) -> None:
    assert cli("solve", "p", *flags.split()).code == 0
    assert daemon.bodies("/v1/solve") == [{"problem": "p", "stream": True, **expected}]


@pytest.mark.parametrize(
    "flags",
    [
        "--no-early-exit --set early_exit.detect=3",
        "--set early_exit=true --set early_exit.detect=3",
        "--set c",
        "--set =3",
        "--threshold entropy",
        "--set top_k=1.5",
        "--set judge=nobody",
    ],
)
def test_wrong_flags(cli: Cli, daemon: FakeDaemon, flags: str) -> None:
    done = cli("solve", "p", *flags.split())
    assert (done.code, done.out, daemon.bodies("/v1/solve")) == (2, "", [])


# ---------------------------------------------------------------- HTTP


async def spec_of(body: dict[str, Any], *, chat: bool = False) -> Any:
    """What the service is asked, or the response when it was refused."""
    service = FakeService()
    async with client_of(service) as client:
        if chat:
            messages = [{"role": "user", "content": "p"}]
            told = {"model": "bundled", "messages": messages, "search": body}
            response = await client.post("/v1/chat/completions", json=told)
        else:
            response = await client.post("/v1/solve", json={"problem": "p", **body})
    return service.last.request if response.status_code == 200 else response


@pytest.mark.parametrize("chat", [False, True])
async def test_early_exit_is_a_switch_or_an_object(chat: bool) -> None:
    async def exits(strategy: str, **body: Any) -> ExitOptions | None:
        found = (await spec_of({"strategy": strategy, **body}, chat=chat)).early_exit
        return cast(ExitOptions | None, found)

    assert await exits("beam") is None
    assert await exits("beam", early_exit=None) is None
    assert await exits("beam", early_exit=True) == ExitOptions()
    assert await exits("self_consistency", early_exit=False) is None
    assert await exits("self_consistency", early_exit=True) == ExitOptions()
    said = {"policy": "every_5", "detect": 2}
    assert await exits("self_consistency", early_exit=said) == ExitOptions(**said)
    # votes of short answers end early by themselves
    assert await exits("self_consistency") == ExitOptions()
    assert await exits("self_consistency", early_exit=None) == ExitOptions()
    assert await exits("self_consistency", answers="text") == ExitOptions()
    assert await exits("best_of_n", selection="majority") == ExitOptions()
    assert await exits("self_consistency", answers="whole") is None
    assert await exits("best_of_n") is None
    assert await exits("best_of_n", selection="best") is None
    assert await exits("mcts") is None


@pytest.mark.parametrize("chat", [False, True])
async def test_strategies_bring_their_defaults(chat: bool) -> None:
    mcts = await spec_of({"strategy": "mcts", "options": {"c": 0.5}}, chat=chat)
    assert (mcts.selection, mcts.aggregate, mcts.options) == ("best", "prod", {"c": 0.5})
    told = await spec_of({"strategy": "mcts", "selection": "weighted"}, chat=chat)
    assert told.selection == "weighted"
    chain = await spec_of({"strategy": "probed_cot"}, chat=chat)
    assert (chain.n, chain.early_exit) == (1, ExitOptions())
    off = await spec_of({"strategy": "probed_cot", "early_exit": False}, chat=chat)
    assert off.early_exit is None
    assert "Final answer" in chain.options["suffix"]  # the pair's own
    other = {"strategy": "probed_cot", "options": {"suffix": "So: "}}
    assert (await spec_of(other, chat=chat)).options["suffix"] == "So: "
    assert (await spec_of({}, chat=chat)).selection == "weighted"


@pytest.mark.parametrize("chat", [False, True])
async def test_the_pair_brings_the_threshold_of_the_rule_entropy(chat: bool) -> None:
    spec = await spec_of({"step_rule": "entropy"}, chat=chat)
    assert spec.entropy_rule == EntropyRule(threshold=0.3, min_tokens=8)  # of the bundled pair
    told = {"step_rule": "entropy", "step_entropy": 2, "min_step_tokens": 3}
    spec = await spec_of(told, chat=chat)
    assert spec.entropy_rule == EntropyRule(threshold=2, min_tokens=3)


@pytest.mark.parametrize(
    "early_exit", ["yes", 1, {"policy": "mine"}, {"patience": 1}, {"detect": "x"}, []]
)
async def test_wrong_early_exits_and_options_are_refused(early_exit: Any) -> None:
    response = await spec_of({"early_exit": early_exit})
    assert response.status_code in (400, 422)
    assert "early_exit" in json.dumps(response.json())
    assert (await spec_of({"options": [1]})).status_code in (400, 422)
