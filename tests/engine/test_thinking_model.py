"""A model that thinks, on real engines: stop strings, budgets and streams."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from flashedge.api.paths import CHAT, MESSAGES
from scripts.bench.daemon import start_daemon
from tests.support import tool_suite
from tests.support.streams import list_blocks, read, read_events
from tests.support.tool_caller import NO_TOOLS, THOUGHT, make_pairs

SAY = [{"role": "user", "content": "3 + 4?"}]
MODELS = pytest.mark.parametrize("model", ["thinker", "thinker:self_consistency-2"])
Said = tuple[str, str, list[Any]]
"""Thinking, text, and arguments of calls."""


def ask(client: httpx.Client, model: str, *, stream: bool, **fields: Any) -> Said:
    body = {"model": model, "messages": SAY, "max_tokens": 150, "temperature": 0, **fields}
    answer = client.post(CHAT, json={**body, "stream": stream})
    text, calls = read(CHAT, answer)
    if stream:
        deltas = [choice["delta"] for e in read_events(answer) for choice in e["choices"]]
        thought = "".join(delta.get("reasoning") or "" for delta in deltas)
    else:
        thought = answer.json()["choices"][0]["message"]["reasoning"] or ""
    return thought.rpartition("[/search]\n")[2], text, list(map(json.loads, calls))


CASES: list[tuple[dict[str, Any], Said]] = [
    ({}, (THOUGHT, NO_TOOLS, [])),
    ({"stop": ["Q:"]}, (THOUGHT, NO_TOOLS, [])),
    ({"stop": ["Q:", "no"]}, (THOUGHT, "I have ", [])),
    ({"tools": [tool_suite.TOOL], "stop": "Wait"}, (THOUGHT, "", [{"a": 3, "b": 4}])),
    ({"max_tokens": 6}, (THOUGHT[:9], "", [])),
]


@MODELS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "said"), CASES, ids=lambda v: str(v)[:40])
def test_the_thinking_is_whole_and_apart(
    client: httpx.Client, model: str, fields: dict[str, Any], said: Said, stream: bool
) -> None:
    found = ask(client, model, stream=stream, **fields)
    if fields.get("max_tokens"):
        assert THOUGHT.startswith(found[0])
        said = (found[0], "", [])
    assert found == said


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.1}, {"seed": 5}, {"seed": 5, "temperature": 0.1}], ids=str
)
def test_a_budget_of_thinking_is_obeyed(
    client: httpx.Client, sampling: dict[str, Any], stream: bool
) -> None:
    """The model goes on as if it had not thought to the end, so only the beginning is known."""
    thought, text, _ = ask(
        client, "thinker", stream=stream, thinking_token_budget=4, max_tokens=60, **sampling
    )
    assert THOUGHT.startswith(thought)
    assert 0 < len(thought) < len(THOUGHT) / 2
    assert text


@MODELS
@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_on_with_an_answer_is_text(
    client: httpx.Client, model: str, stream: bool
) -> None:
    turns = [*SAY, {"role": "assistant", "content": f"<think>{THOUGHT}</think>I have"}]
    body = {"model": model, "messages": turns, "max_tokens": 20, "temperature": 0, "stream": stream}
    assert read(MESSAGES, client.post(MESSAGES, json=body)) == (" no tools.", [])


@MODELS
def test_messages_show_the_thinking_in_blocks_of_its_own(client: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": SAY, "max_tokens": 150, "temperature": 0}
    body["stop_sequences"] = ["Q:"]
    content = client.post(MESSAGES, json=body).json()["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]
    assert (content[0]["thinking"], content[1]["text"]) == (THOUGHT, NO_TOOLS)
    answer = client.post(MESSAGES, json={**body, "stream": True})
    assert list(list_blocks(answer)) == ["thinking", "text"]


@pytest.mark.long
def test_a_daemon_starts_with_a_pair_that_is_not_bundled(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(make_pairs(tmp_path), encoding="utf-8")
    with (
        start_daemon(config_dir=tmp_path, pair="thinker") as daemon,
        httpx.Client(base_url=daemon.url, timeout=120) as client,
    ):
        assert client.get("/v1/status").json()["loaded"] == ["thinker"]
        assert ask(client, "thinker", stream=False) == (THOUGHT, NO_TOOLS, [])
