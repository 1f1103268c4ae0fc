"""`launch`: start a coding agent that asks the daemon, and become it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.connection import connect_ready
from flashedge.cli.launch.agents import AGENTS, Agent, Endpoint, complete_agent, find_agent
from flashedge.cli.solve.strategy_flags import complete_strategy, parse_strategy_flags
from flashedge.config import Config, load_config
from flashedge.errors import ConfigError, RequestError
from flashedge.models.registry import find_pair, load_pairs
from flashedge.models.specs import Pair

EPILOG = """\
[bold]Examples[/]
  flashedge launch claude --model qwen-1.5b+skywork-1.5b
  flashedge launch codex --search beam-4 -- exec "What is 12 + 7?"
  flashedge launch aider --print

The exit code is the agent's.
"""
VERSION_TIMEOUT_S = 30.0
_VERSION = re.compile(r"(\d+)\.(\d+)[\w.-]*")


def launch(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT", help=f"{', '.join(AGENTS)}.", autocompletion=complete_agent
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The agent's own, behind `--`.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--pair",
            metavar="PAIR[:SEARCH]",
            help="Pair that answers, alone or by a search.",
            show_default="bundled",
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[-N]",
            help="Answer each turn, and choose its tool calls, by a search: beam-4.",
            autocompletion=complete_strategy,
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--print", help="Print what would be set, the key too, and run; start nothing."
        ),
    ] = False,
) -> None:
    """Start a coding agent that asks this machine's models.

    Starts the daemon if none runs. No file is changed: the agent gets variables and options.
    """
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import build_url

    chosen = find_agent(agent)
    name, _, named = (model or "").partition(":")
    if named and search is not None and named != search:
        raise RequestError(
            f"--model {model} and --search {search} contradict each other", param="search"
        )
    search = named or search
    strategy, _ = parse_strategy_flags(search, None)
    config = load_config({"pair": name or None})
    pair = find_pair(config.pair, config)
    own = arguments or []
    if show:
        path, record = chosen.program, daemon_control.find(config)
        url = build_url(config.host, config.port) if record is None else record.url
    else:
        path = _find_program(chosen)
        _check_version(chosen, path)
        with connect_ready(config) as client:
            _check_served(client, pair, strategy)
            url = client.base_url
    endpoint = Endpoint(
        url=url,
        api_key=config.api_key,
        model=f"{pair.name}:{search}" if search else pair.name,
        pair=pair.name,
        context_tokens=pair.generator.max_model_len,
    )
    pointers = chosen.point(endpoint)
    command = [chosen.program, *pointers.options, *own]
    if show:
        for variable, value in pointers.variables.items():
            output.say(f"export {variable}={shlex.quote(value)}")
        output.say(shlex.join(command))
        _warn_about(chosen, pair, config)
        return
    _warn_about(chosen, pair, config)
    output.note(
        f"{endpoint.model} answers {chosen.title}: {pair.generator.source}"
        f"{f', searched with {pair.verifier.source}' if search else ''},"
        f" {endpoint.context_tokens:,} tokens of context, at {endpoint.url}"
    )
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(path, command, {**os.environ, **pointers.variables})
    except OSError as error:
        raise ConfigError(
            f"can't run {path}: {error.strerror}",
            hint=f"install it again: {chosen.install_command}",
            param="agent",
        ) from error


# ---------------------------------------------------------------- checks


def _find_program(agent: Agent) -> str:
    path = shutil.which(agent.program)
    if path is None:
        raise ConfigError(
            f"{agent.title} is not installed: there is no `{agent.program}` on PATH",
            hint=f"install it: {agent.install_command}",
            param="agent",
        )
    return path


def _check_version(agent: Agent, path: str) -> None:
    """Warn of a version that was not tried, unless it is a patch of one that was."""
    try:
        told = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    found = _VERSION.search(told)
    tried = [_VERSION.match(version) for version in agent.versions]
    if found and found.groups() in [version.groups() for version in tried if version]:
        return
    output.warn(
        f"{agent.title} {found[0] if found else 'of an unknown version'} was not tried with"
        f" FlashEdge; {' and '.join(agent.versions)} worked."
        f" If it fails: {agent.install_command}"
    )


def _check_served(client: Any, pair: Pair, strategy: str | None) -> None:
    """Raises ConfigError where the daemon can't answer by this pair and search."""
    served = {str(model["id"]) for model in client.models()["data"]}
    if pair.name not in served:
        raise ConfigError(
            f"the files of the pair {pair.name!r} are not on this machine",
            hint=f"flashedge models pull {pair.name}",
            param="model",
        )
    if strategy is not None and f"{pair.name}:{strategy}" not in served:
        known = ", ".join(sorted(name for name in served if name.startswith(f"{pair.name}:")))
        raise ConfigError(
            f"the pair {pair.name!r} can't search by {strategy}",
            hint=f"it answers as {known}",
            param="search",
        )


def _warn_about(agent: Agent, pair: Pair, config: Config) -> None:
    """Say what the agent will stumble over."""
    context, opening = pair.generator.max_model_len, agent.opening_tokens
    if context < opening:
        output.warn(
            f"{agent.title} opens with {opening:,} tokens or more; {pair.name} takes {context:,}:"
            f" it will be refused. {_suggest_pairs(agent, config)}"
        )
    if agent.has_tools and pair.generator.tool_parser is None:
        output.warn(
            f"{pair.name} has no tool_parser in models.toml: {agent.title}'s requests bring tools"
            " and will be refused."
        )


def _suggest_pairs(agent: Agent, config: Config) -> str:
    """The first pairs of two generators that take the agent's first request."""
    fitting: dict[str, str] = {}
    for pair in load_pairs(config).values():
        model = pair.generator
        if model.max_model_len > agent.opening_tokens and (
            model.tool_parser or not agent.has_tools
        ):
            fitting.setdefault(model.source, f"{pair.name} ({model.max_model_len:,})")
    own = "raise max_model_len in a models.toml of your own, as far as the model goes"
    if not fitting:
        return f"To use it, {own}."
    return f"Use {' or '.join([*fitting.values()][:2])}, or {own}."
