"""Asks a daemon for the tool calls of tasks whose right call is known, by an agent's own requests.

One request of 8 votes returns all its paths as choices, so the same 8 paths are one sample (their
mean) and the vote; the verifier's choice and beam search are requests of their own.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]

from flashedge.cli.progress import show_bar
from flashedge.config import load_config
from scripts.bench.daemon import start_daemon
from scripts.lab.statistics import interval, mean
from scripts.train_tools.tasks import define_tool

PAIR, PATHS = "tools", 8
AT_ONCE = 8
ASK_S = 600.0
MOST_TOKENS = 512
"""Of a path."""
MODELS = """
[generators.tools]
source = "{folder}/generator"
dtype = "float32"
max_model_len = 1024
tool_parser = "hermes"

[verifiers.tools]
source = "{folder}/prm"
dtype = "float32"
max_model_len = 1024
family = "qwen_prm"
step_token = "<extra_0>"

[pairs.tools]
description = "trained by scripts/train_tools"
generator = "tools"
verifier = "tools"
memory = {{ generator_kv_bytes = "256MiB", verifier_kv_bytes = "256MiB" }}
sampling = {{ temperature = 0.8 }}
max_step_tokens = 192
max_path_tokens = 512
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to ask for a call."""

    name: str
    search: Mapping[str, Any]
    choices: int = 1
    tool_choice: str = "auto"


def search(strategy: str) -> dict[str, Any]:
    return {"strategy": strategy, "n": PATHS, "early_exit": False}


VOTE, REQUIRED = "vote of 8", "vote of 8, call required at once"
WAYS = (
    Way(name=VOTE, search=search("self_consistency"), choices=PATHS),
    Way(name="verifier of 8", search=search("best_of_n")),
    Way(name="beam of 8", search=search("beam")),
    Way(name=REQUIRED, search=search("self_consistency"), choices=PATHS, tool_choice="required"),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request got: for each choice whether it called, validly, and rightly."""

    called: tuple[bool, ...]
    valid: tuple[bool, ...]
    right: tuple[bool, ...]


def measure(folder: Path, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ask the pair in `folder` for each task in each way."""
    with tempfile.TemporaryDirectory() as config:
        Path(config, "models.toml").write_text(MODELS.format(folder=folder.resolve()))
        return ask_pair(PAIR, config, WAYS, tasks)


def measure_known(name: str, tasks: Sequence[Mapping[str, Any]], *, required: bool) -> Any:
    """Ask a pair of the user's models.toml by votes. required: whether it must call at once."""
    ways = [way for way in WAYS if way.choices > 1 and (way.name == REQUIRED) == required]
    return ask_pair(name, str(load_config().config_dir), ways, tasks)


def ask_pair(
    name: str, config_dir: str, ways: Sequence[Way], tasks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Start a daemon with a pair and ask it."""
    with start_daemon(config_dir=config_dir, pair=name) as served:
        return report(asyncio.run(ask_all(served.url, name, ways, tasks)))


async def ask_all(
    url: str, pair: str, ways: Sequence[Way], tasks: Sequence[Mapping[str, Any]]
) -> dict[str, list[Reply]]:
    """Replies by way, in the tasks' order."""
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=ASK_S) as client:

        async def ask(seed: int, task: Mapping[str, Any], way: Way) -> Reply:
            async with room:
                reply = await ask_once(client, pair, seed, task, way)
            advance(1)
            return reply

        found: dict[str, list[Reply]] = {}
        for way in ways:
            with show_bar(way.name, len(tasks), unit="tasks") as advance:
                found[way.name] = list(
                    await asyncio.gather(*(ask(i, task, way) for i, task in enumerate(tasks)))
                )
        return found


async def ask_once(
    client: httpx.AsyncClient, pair: str, seed: int, task: Mapping[str, Any], way: Way
) -> Reply:
    """Raises RuntimeError with the daemon's words where it refuses."""
    tools = [define_tool(name) for name in task["tools"]]
    body = {
        "model": pair,
        "messages": [{"role": "user", "content": task["problem"]}],
        "tools": tools,
        "tool_choice": way.tool_choice,
        "search": way.search,
        "n": way.choices,
        "seed": seed,
        "max_tokens": MOST_TOKENS,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    if answer.is_error:
        raise RuntimeError(f"{answer.status_code}: {answer.text}")
    calls = [choice["message"].get("tool_calls") or [] for choice in answer.json()["choices"]]
    return Reply(
        called=tuple(bool(made) for made in calls),
        valid=tuple(all(is_valid(call, tools) for call in made) for made in calls),
        right=tuple([read_arguments(call) for call in made] == [task["call"]] for made in calls),
    )


def read_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    return {"name": function["name"], "arguments": arguments}


def is_valid(call: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call names an offered tool and its arguments match the tool's schema."""
    made = read_arguments(call)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if made["name"] not in schemas:
        return False
    try:
        jsonschema.validate(made["arguments"], schemas[made["name"]])
    except jsonschema.ValidationError:
        return False
    return True


def report(replies: Mapping[str, Sequence[Reply]]) -> dict[str, Any]:
    """Shares in percent with 95 % bootstrap intervals over tasks. `gain` is over one sample, task
    by task: a path of the first way, which is a vote."""
    votes = next(iter(replies.values()))
    sample = [mean([float(r) for r in reply.right]) for reply in votes]
    rows = {"one sample": {"right": percent(sample)}}
    for name, found in replies.items():
        right = [float(reply.right[0]) for reply in found]
        rows[name] = {
            "right": percent(right),
            "gain": percent([a - b for a, b in zip(right, sample, strict=True)]),
        }
    made = [reply for found in replies.values() for reply in found]
    paths = sum(len(reply.called) for reply in made)
    return {
        "tasks": len(sample),
        "rows": rows,
        "some path right": percent([float(any(reply.right)) for reply in votes]),
        "paths": paths,
        "paths with a call": sum(sum(reply.called) for reply in made),
        "paths with an invalid call": paths - sum(sum(reply.valid) for reply in made),
    }


def percent(values: Sequence[float]) -> dict[str, Any]:
    low, high = interval(values)
    return {
        "percent": round(100 * mean(values), 1),
        "interval": [round(100 * low, 1), round(100 * high, 1)],
    }
