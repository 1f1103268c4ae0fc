"""`launch`: what a coding agent is told, and what is said before it starts.

The agents are shell scripts on PATH that print their variables and arguments.
"""

import json
import os
import shlex
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from flashedge.cli.launch import AGENTS, NO_KEY, Endpoint
from flashedge.daemon import control as daemon_control
from tests.support.cli_rig import Cli, Patch, cli_for, failing, with_daemon
from tests.support.fake_daemon import FakeDaemon

URL = "http://127.0.0.1:8642"
ENDPOINT = Endpoint(
    url=URL, api_key=None, model="bundled:beam-4", pair="bundled", context_tokens=1024
)
PROGRAM = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "the-agent {version} (x)"; exit; fi
for argument in "$@"; do echo "argument $argument"; done
env
exit 7
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Commands that find no agent, and wait for one that they would become."""

    def run(path: str, command: list[str], variables: dict[str, str]) -> NoReturn:
        raise SystemExit(subprocess.run([path, *command[1:]], env=variables).returncode)

    monkeypatch.setattr(os, "execvpe", run)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("FLASHEDGE_API_KEY", raising=False)
    (tmp_path / "bin").mkdir()
    return cli_for(tmp_path, monkeypatch, capfd)


@pytest.fixture
def daemon(monkeypatch: Patch) -> FakeDaemon:
    served = [{"id": name} for name in ("bundled", "bundled:beam", "bundled:best_of_n")]
    reply = httpx.Response(200, json={"data": served})
    return with_daemon(monkeypatch, FakeDaemon(errors={"GET /v1/models": reply}))


def install(tmp_path: Path, name: str, version: str | None = None) -> None:
    file = tmp_path / "bin" / AGENTS[name].program
    file.write_text(PROGRAM.format(version=version or AGENTS[name].versions[-1]))
    file.chmod(0o755)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_started(cli: Cli, daemon: FakeDaemon, tmp_path: Path, name: str) -> None:
    install(tmp_path, name)
    done = cli.ends(7, "", "launch", name, "--search", "beam-4", "--", "-p", "two words")
    lines = done.out.splitlines()
    expected = AGENTS[name].point(ENDPOINT)
    assert {f"{k}={v}" for k, v in expected.variables.items()} <= set(lines)
    arguments = [line.removeprefix("argument ") for line in lines if line.startswith("argument ")]
    assert arguments == [*expected.options, "-p", "two words"]
    assert f"bundled:beam-4 answers {AGENTS[name].title}: " in done.err
    assert f"1,024 tokens of context, at {URL}" in done.err.replace("\n", " ")
    assert "not tried" not in done.err


@pytest.mark.parametrize("name", AGENTS)
def test_what_is_printed_can_be_pasted(cli: Cli, monkeypatch: Patch, name: str) -> None:
    monkeypatch.setattr(daemon_control, "start", None)
    model = "bundled:Latest:beam-4"
    done = cli.ends(0, "", "launch", name, "--model", model, "--print", "--", "it's")
    *exports, command = done.out.splitlines()
    expected = AGENTS[name].point(ENDPOINT)
    printed = [shlex.split(line)[1].partition("=") for line in exports]
    assert {key: value for key, _, value in printed} == expected.variables
    assert shlex.split(command) == [AGENTS[name].program, *expected.options, "it's"]


def test_what_agents_are_told() -> None:
    for agent in AGENTS.values():
        told = agent.point(replace(ENDPOINT, api_key="a-key"))
        text = json.dumps([told.variables, told.options])
        assert (URL in text, ENDPOINT.model in text) == (True, True)
        assert "a-key" in json.dumps(told.variables)
    lines = [option for option in AGENTS["codex"].point(ENDPOINT).options if option != "-c"]
    provider = {"name": "FlashEdge", "base_url": f"{URL}/v1", "wire_api": "responses"}
    model = {"model": "bundled:beam-4", "model_context_window": 1024}
    providers = {"model_provider": "flashedge", "model_providers": {"flashedge": provider}}
    assert tomllib.loads("\n".join(lines)) == {**model, **providers}
    claude = AGENTS["claude"].point(ENDPOINT).variables
    assert claude["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "bundled", "small requests need no search"
    assert (claude["ANTHROPIC_AUTH_TOKEN"], claude["ANTHROPIC_API_KEY"]) == (NO_KEY, "")
    config = json.loads(AGENTS["opencode"].point(ENDPOINT).variables["OPENCODE_CONFIG_CONTENT"])
    assert config["small_model"] == "flashedge/bundled"
    assert config["provider"]["flashedge"]["models"].keys() == {"bundled", "bundled:beam-4"}


def test_the_key_is_passed(
    cli: Cli, daemon: FakeDaemon, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("FLASHEDGE_API_KEY", "of-the-settings")
    install(tmp_path, "claude")
    assert "ANTHROPIC_AUTH_TOKEN=of-the-settings" in cli("launch", "claude").out.splitlines()


def test_a_small_context_and_a_model_without_tools_are_told(cli: Cli) -> None:
    done = cli("launch", "claude", "--print")
    told = " ".join(done.err.split())
    assert "12,000 tokens or more, and will be refused: bundled takes 1,024" in told
    assert "Use qwen-1.5b (16,384) or qwen-7b+skywork-1.5b (16,384), or raise" in told
    fits = cli("launch", "qwen", "--pair", "qwen3-4b-thinking-fp8+skywork-1.5b", "--print")
    assert (fits.code, fits.err) == (0, "")
    pair = "r1-qwen3-8b-fp8+skywork-1.5b"
    assert f"{pair} has no tool_parser" in cli("launch", "codex", "--pair", pair, "--print").err
    assert cli("launch", "aider", "--pair", pair, "--print").err == ""  # it has no tools


@pytest.mark.parametrize("name", AGENTS)
def test_a_missing_program(cli: Cli, daemon: FakeDaemon, name: str) -> None:
    agent = AGENTS[name]
    said = f"is not installed: there is no `{agent.program}` on PATH"
    done = cli.ends(2, said, "launch", name)
    assert f"install it: {agent.install_command}" in done.err
    assert agent.versions[-1] in agent.install_command
    assert not daemon.requests


def test_a_version_that_was_not_tried(cli: Cli, daemon: FakeDaemon, tmp_path: Path) -> None:
    minor = AGENTS["aider"].versions[-1].rpartition(".")[0]
    for version, told in (
        ("99.0.1", "99.0.1 was not tried"),
        ("?", "of an unknown version was not tried"),
        (f"{minor}.9999", ""),
    ):
        install(tmp_path, "aider", version)
        shown = cli.ends(7, told, "launch", "aider").err
        assert ("not tried" in shown) == bool(told)
        assert not told or AGENTS["aider"].install_command in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("cluade", "there is no agent 'cluade'\n  did you mean 'claude'? known: claude, codex,"),
        ("cluade", "codex, opencode, aider, qwen"),
        ("claude --model nosuch", "there is no pair 'nosuch'"),
        ("claude --model bundled:bema-4", "bema"),
        ("claude --model bundled:beam-4 --search beam-8", "contradicts --search beam-8"),
        ("claude --model qwen-1.5b+skywork-1.5b", "flashedge models pull qwen-1.5b+skywork-1.5b"),
        ("claude --search mcts-4", "it answers as bundled:beam, bundled:best_of_n"),
    ],
)
def test_refusals(cli: Cli, daemon: FakeDaemon, tmp_path: Path, arguments: str, told: str) -> None:
    install(tmp_path, "claude")
    assert cli.ends(2, told, "launch", *arguments.split()).out == ""


def test_a_broken_program(cli: Cli, daemon: FakeDaemon, tmp_path: Path, monkeypatch: Patch) -> None:
    install(tmp_path, "aider")
    monkeypatch.setattr(os, "execvpe", failing(OSError(8, "Exec format error")))
    cli.ends(2, "aider: Exec format error", "launch", "aider")
