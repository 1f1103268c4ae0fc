"""`launch`: replace this process with a coding agent that asks the daemon.

An agent is pointed at the daemon by environment variables and options, never by a file.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from flashedge.cli import output
from flashedge.cli.connection import connect_ready, load_served
from flashedge.cli.solve.strategy_flags import complete_strategy, parse_strategy_flags
from flashedge.config import Config, find_nearest
from flashedge.errors import ConfigError, NotFound, RequestError
from flashedge.models.registry import find_pair, load_pairs, split_name
from flashedge.models.specs import Pair

EPILOG = """\
[bold]Examples[/]
  flashedge launch claude --model qwen-1.5b+skywork-1.5b
  flashedge launch codex --search beam-4 -- exec "What is 12 + 7?"
  flashedge launch aider --print

The exit code is the agent's.
"""
VERSION_TIMEOUT_S = 30.0
"""How long an agent may take to tell its version. Those on Node take seconds; a user whose agent
hangs waits no longer than this."""
_VERSION = re.compile(r"(\d+)\.(\d+)[\w.-]*")
NO_KEY = "none"
"""The key for agents that insist on one, where the daemon has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What an agent is pointed at."""

    url: str
    """The daemon's URL, without /v1."""
    api_key: str | None
    model: str
    """What answers the agent's turns: a pair, or a pair with a search."""
    pair: str
    """What answers its small requests, such as titles. They are not worth a search."""
    context_tokens: int
    """Most tokens of a prompt and its answer together."""


class Pointers(NamedTuple):
    """What makes an agent ask an endpoint."""

    variables: Mapping[str, str]
    options: tuple[str, ...] = ()
    """They stand before the user's own arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A coding agent."""

    title: str
    program: str
    """What is looked for on PATH."""
    install: str
    """The command that installs `{version}`."""
    versions: tuple[str, ...]
    """Those that were run with FlashEdge, the newest last."""
    opening_tokens: int
    """Tokens of its first request with its instructions and tools, but nothing of the user's, as a
    tokenizer with a vocabulary of 65,000 counts them."""
    has_tools: bool = True
    """Whether its requests bring tools."""
    point: Callable[[Endpoint], Pointers]

    @property
    def install_command(self) -> str:
        return self.install.format(version=self.versions[-1])


def find_agent(name: str) -> Agent:
    """The agent of that name. Raises NotFound, which names the nearest and all agents."""
    if name in AGENTS:
        return AGENTS[name]
    close = find_nearest(name, AGENTS)
    hint = (f"did you mean {close!r}? " if close else "") + f"known: {', '.join(AGENTS)}"
    raise NotFound(f"there is no agent {name!r}", hint=hint, param="agent")


def _point_claude(endpoint: Endpoint) -> Pointers:
    """In Claude Code `--settings` overrides settings.json, which overrides the environment. So the
    variables go into `--settings`, too, but not the key: `ps` shows options."""
    shown = {
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_API_KEY": "",  # else the user's own key would be sent, too
        "ANTHROPIC_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": endpoint.pair,
        "ANTHROPIC_SMALL_FAST_MODEL": endpoint.pair,  # its name in earlier versions
        "CLAUDE_CODE_SUBAGENT_MODEL": endpoint.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(endpoint.context_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Pointers(
        variables={**shown, "ANTHROPIC_AUTH_TOKEN": endpoint.api_key or NO_KEY},
        options=("--settings", json.dumps({"env": shown})),
    )


def _point_codex(endpoint: Endpoint) -> Pointers:
    """Codex reads `-c KEY=VALUE` as a line of its config.toml. JSON's strings are TOML's."""
    provider = {"name": "FlashEdge", "base_url": f"{endpoint.url}/v1", "wire_api": "responses"}
    if endpoint.api_key is not None:
        provider["env_key"] = "FLASHEDGE_API_KEY"
    settings = {
        "model": endpoint.model,
        "model_context_window": endpoint.context_tokens,
        "model_provider": "flashedge",
        **{f"model_providers.flashedge.{key}": value for key, value in provider.items()},
    }
    return Pointers(
        variables={} if endpoint.api_key is None else {"FLASHEDGE_API_KEY": endpoint.api_key},
        options=tuple(
            part
            for key, value in settings.items()
            for part in ("-c", f"{key}={json.dumps(value, ensure_ascii=False)}")
        ),
    )


def _point_opencode(endpoint: Endpoint) -> Pointers:
    tokens = endpoint.context_tokens
    limit = {"context": tokens, "output": tokens // 4}  # an agent's prompt needs more
    models = {name: {"name": name, "limit": limit} for name in (endpoint.model, endpoint.pair)}
    config = {
        "model": f"flashedge/{endpoint.model}",
        "small_model": f"flashedge/{endpoint.pair}",
        "provider": {
            "flashedge": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "FlashEdge",
                "options": {"baseURL": f"{endpoint.url}/v1", "apiKey": endpoint.api_key or NO_KEY},
                "models": models,
            }
        },
    }
    return Pointers(variables={"OPENCODE_CONFIG_CONTENT": json.dumps(config, ensure_ascii=False)})


def _point_aider(endpoint: Endpoint) -> Pointers:
    return Pointers(
        variables={"OPENAI_API_KEY": endpoint.api_key or NO_KEY},
        options=(
            f"--openai-api-base={endpoint.url}/v1",  # a project's .env replaces variables
            f"--model=openai/{endpoint.model}",
            f"--weak-model=openai/{endpoint.pair}",
            "--no-show-model-warnings",  # else it asks about models whose price it does not know
        ),
    )


def _point_qwen(endpoint: Endpoint) -> Pointers:
    return Pointers(
        variables={
            "OPENAI_BASE_URL": f"{endpoint.url}/v1",
            "OPENAI_API_KEY": endpoint.api_key or NO_KEY,
            "OPENAI_MODEL": endpoint.model,
        },
        options=("--auth-type", "openai", "--model", endpoint.model),
    )


AGENTS: Mapping[str, Agent] = {
    "claude": Agent(
        title="Claude Code",
        program="claude",
        install="npm install -g @anthropic-ai/claude-code@{version}",
        versions=("2.1.197", "2.1.332"),
        opening_tokens=12_000,
        point=_point_claude,
    ),
    "codex": Agent(
        title="Codex",
        program="codex",
        install="npm install -g @openai/codex@{version}",
        versions=("0.169.0", "0.171.0"),
        opening_tokens=9_000,
        point=_point_codex,
    ),
    "opencode": Agent(
        title="OpenCode",
        program="opencode",
        install="npm install -g opencode-ai@{version}",
        versions=("1.18.33",),
        opening_tokens=7_000,
        point=_point_opencode,
    ),
    "aider": Agent(
        title="aider",
        program="aider",
        install="pipx install aider-chat=={version}",
        versions=("0.86.2",),
        opening_tokens=1_400,  # as the bundled pair counts them: no other pair has so few
        has_tools=False,
        point=_point_aider,
    ),
    "qwen": Agent(
        title="Qwen Code",
        program="qwen",
        install="npm install -g @qwen-code/qwen-code@{version}",
        versions=("0.24.4",),
        opening_tokens=18_000,
        point=_point_qwen,
    ),
}


def launch(
    agent: Annotated[
        str,
        Argument(
            metavar="AGENT",
            help=f"{', '.join(AGENTS)}.",
            autocompletion=lambda incomplete: [a for a in AGENTS if a.startswith(incomplete)],
        ),
    ],
    arguments: Annotated[
        list[str] | None, Argument(metavar="ARGUMENTS", help="Arguments of the agent, after `--`.")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "--pair",
            metavar="PAIR[:SEARCH]",
            help="Pair that answers, alone or by a search.",
            show_default="the daemon's pair",
        ),
    ] = None,
    search: Annotated[
        str | None,
        Option(
            metavar="NAME[-N]",
            help="Answer each turn, and choose its tool calls, by a search: beam-4.",
            autocompletion=complete_strategy,
        ),
    ] = None,
    show: Annotated[
        bool,
        Option("--print", help="Print the variables, with the key, and the command; run nothing."),
    ] = False,
) -> None:
    """Start a coding agent that asks this machine's models.

    Starts the daemon if none runs. No file is changed: the agent gets variables and options.
    """
    from flashedge.daemon import control as daemon_control
    from flashedge.daemon.files import build_url

    chosen = find_agent(agent)
    name, named = split_name(model or "")
    if named and search is not None and named != search:
        raise RequestError(f"--model {model} contradicts --search {search}", param="search")
    search = named or search
    strategy, _ = parse_strategy_flags(search, None)
    config = load_served(name or None)
    pair = find_pair(config.pair, config)
    if show:
        path, record = chosen.program, daemon_control.find_daemon(config)
        url = build_url(config.host, config.port) if record is None else record.url
    else:
        path = shutil.which(chosen.program) or ""
        if not path:
            raise ConfigError(
                f"{chosen.title} is not installed: there is no `{chosen.program}` on PATH",
                hint=f"install it: {chosen.install_command}",
                param="agent",
            )
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
    command = [chosen.program, *pointers.options, *(arguments or ())]
    _warn_about(chosen, pair, config)
    if show:
        for variable, value in pointers.variables.items():
            output.say(f"export {variable}={shlex.quote(value)}")
        output.say(shlex.join(command))
        return
    output.note(
        f"{endpoint.model} answers {chosen.title}: {pair.generator.source}"
        f"{f', searched by {search}' if search else ''},"
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


def _check_version(agent: Agent, path: str) -> None:
    """Warn if neither this version nor another patch of its minor version was tried."""
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
    if found and found.groups() in [_VERSION.findall(version)[0] for version in agent.versions]:
        return
    output.warn(
        f"{agent.title} {found[0] if found else 'of an unknown version'} was not tried with"
        f" FlashEdge; {' and '.join(agent.versions)} worked."
        f" If it fails: {agent.install_command}"
    )


def _check_served(client: Any, pair: Pair, strategy: str | None) -> None:
    """Raises ConfigError where the daemon can't answer with this pair and search."""
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
    """Warn if the pair will refuse the agent's requests."""
    context, opening = pair.generator.max_model_len, agent.opening_tokens
    if context < opening:
        output.warn(
            f"{agent.title}'s first request has {opening:,} tokens or more, and will be refused:"
            f" {pair.name} takes {context:,}. {_suggest_pairs(agent, config)}"
        )
    if agent.has_tools and pair.generator.tool_parser is None:
        output.warn(
            f"{pair.name} has no tool_parser in models.toml: {agent.title}'s requests bring tools"
            " and will be refused."
        )


def _suggest_pairs(agent: Agent, config: Config) -> str:
    """A sentence of advice. It names pairs that take the agent's first request: for each of at most
    two generators the first pair."""
    fitting: dict[str, str] = {}
    for pair in load_pairs(config).values():
        model = pair.generator
        can_call = model.tool_parser is not None or not agent.has_tools
        if can_call and model.max_model_len >= agent.opening_tokens:
            fitting.setdefault(model.source, f"{pair.name} ({model.max_model_len:,})")
    own = "raise max_model_len in a models.toml of your own, up to what the model was trained for"
    if not fitting:
        return f"To use it, {own}."
    return f"Use {' or '.join(list(fitting.values())[:2])}, or {own}."
