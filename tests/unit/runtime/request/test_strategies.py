"""Strategies, their options and early exit as the command line and HTTP take them."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from flashedge.runtime.request.early_exit import ExitOptions
from flashedge.search.step_rules import EntropyRule
from tests.support.api_rig import ask
from tests.support.cli_rig import Cli, cli_for, with_daemon
from tests.support.fake_daemon import FakeDaemon


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
        ("--early-exit", {"early_exit": True}),
        ("--no-early-exit", {"early_exit": False}),
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
        "--set early_exit=true --set early_exit.detect=3",
        "--set c",
        "--set =3",
        "--set judge=nobody",
    ],
)
def test_wrong_flags(cli: Cli, daemon: FakeDaemon, flags: str) -> None:
    done = cli("solve", "p", *flags.split())
    assert (done.code, done.out, daemon.bodies("/v1/solve")) == (2, "", [])


# ---------------------------------------------------------------- HTTP


async def spec_of(**body: Any) -> Any:
    """What the service is asked, or the response when it was refused."""
    service, response = await ask("/v1/solve", {"problem": "p", **body})
    return service.last.request if response.status_code == 200 else response


async def test_early_exit_is_a_switch_or_an_object() -> None:
    async def exits(strategy: str, **body: Any) -> ExitOptions | None:
        found = (await spec_of(strategy=strategy, **body)).early_exit
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
    assert await exits("deepconf") == await exits("deepconf", answers="text") == ExitOptions()
    assert await exits("deepconf", answers="whole") is None
    assert await exits("best_of_n") is None
    assert await exits("best_of_n", selection="best") is None
    assert await exits("mcts") is None


async def test_strategies_bring_their_defaults() -> None:
    mcts = await spec_of(strategy="mcts", options={"c": 0.5})
    assert (mcts.selection, mcts.aggregate, mcts.options) == ("best", "prod", {"c": 0.5})
    assert (await spec_of(strategy="mcts", selection="weighted")).selection == "weighted"
    chain = await spec_of(strategy="probed_cot")
    assert (chain.n, chain.early_exit) == (1, ExitOptions())
    assert (await spec_of(strategy="probed_cot", early_exit=False)).early_exit is None
    assert "Final answer" in chain.options["suffix"]  # the pair's own
    other = await spec_of(strategy="probed_cot", options={"suffix": "So: "})
    assert other.options["suffix"] == "So: "
    assert (await spec_of()).selection == "weighted"


async def test_the_pair_brings_the_threshold_of_the_rule_entropy() -> None:
    spec = await spec_of(step_rule="entropy")
    assert spec.entropy_rule == EntropyRule(threshold=0.3, min_tokens=8)  # of the bundled pair
    spec = await spec_of(step_rule="entropy", step_entropy=2, min_step_tokens=3)
    assert spec.entropy_rule == EntropyRule(threshold=2, min_tokens=3)


async def test_wrong_early_exits_and_options_are_refused() -> None:
    for early_exit in ("yes", 1, [], {"patience": 1}):
        response = await spec_of(early_exit=early_exit)
        assert response.status_code in (400, 422)
        assert "early_exit" in json.dumps(response.json())
    assert (await spec_of(options=[1])).status_code in (400, 422)
