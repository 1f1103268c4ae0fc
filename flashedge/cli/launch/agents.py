"""The coding agents that `launch` knows, and how each is pointed at the daemon: by environment
variables and options, never by a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flashedge.config import find_nearest
from flashedge.errors import NotFound

NO_KEY = "none"
"""The key of agents that insist on one, for a daemon without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What an agent is pointed at."""

    url: str
    """The daemon's, without /v1."""
    api_key: str | None
    model: str
    """What answers the agent's turns: a pair, or a pair with a search."""
    pair: str
    """What answers its small requests, such as titles, which are worth no search."""
    context_tokens: int


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
    """Least tokens of its first request, its instructions and tools: measured without anything of
    the user's, by a tokenizer of 65,000 tokens."""
    has_tools: bool = True
    """Whether its requests bring tools."""
    point: Callable[[Endpoint], Pointers]

    @property
    def install_command(self) -> str:
        return self.install.format(version=self.versions[-1])


def find_agent(name: str) -> Agent:
    """Raises NotFound with the nearest name and all of them."""
    if name in AGENTS:
        return AGENTS[name]
    close = find_nearest(name, AGENTS)
    known = f"known: {', '.join(AGENTS)}"
    raise NotFound(
        f"there is no agent {name!r}",
        hint=f"did you mean {close!r}? {known}" if close else known,
        param="agent",
    )


def complete_agent(incomplete: str) -> list[str]:
    """For the shell: the agents that begin with `incomplete`."""
    return [name for name in AGENTS if name.startswith(incomplete)]


# ---------------------------------------------------------------- one agent after the other


def _point_claude(endpoint: Endpoint) -> Pointers:
    """Claude Code prefers the variables of its settings.json to its environment's, so they go into
    `--settings` as well, which it prefers to both. The key does not: `ps` shows options."""
    shown = {
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_API_KEY": "",  # the user's own would be sent, too
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
    limit = {"context": tokens, "output": tokens // 4}
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
            *("--openai-api-base", f"{endpoint.url}/v1"),  # a project's .env replaces variables
            *("--model", f"openai/{endpoint.model}"),
            *("--weak-model", f"openai/{endpoint.pair}"),
            "--no-show-model-warnings",  # it asks about models whose price it does not know
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
        opening_tokens=1_400,  # by the bundled pair's small tokenizer, which is near; else 700
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
