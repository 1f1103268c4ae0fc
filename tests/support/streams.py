"""What vLLM's protocols say, read from whole and from streamed answers."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from flashedge.api.paths import CHAT, MESSAGES

KINDS = {
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "text_delta": "text",
    "input_json_delta": "tool_use",
}
"""Delta of a message's stream -> the kind of block that it fills."""


def read_events(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def read(path: str, answer: httpx.Response) -> tuple[str, list[str]]:
    """The text of a whole or streamed answer, and the arguments of its calls as JSON."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.status_code == 200, answer.text
        return _read_whole(path, answer.json())
    text, calls = "", dict[Any, str]()
    for event in read_events(answer):
        if path == CHAT:
            for delta in (choice["delta"] for choice in event["choices"]):
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or ():
                    said = call["function"].get("arguments") or ""
                    calls[call["index"]] = calls.get(call["index"], "") + said
        elif event["type"] in ("response.output_text.delta", "content_block_delta"):
            delta = event["delta"]
            text += delta if isinstance(delta, str) else delta.get("text", "")
            if isinstance(delta, dict) and "partial_json" in delta:
                calls[event["index"]] = calls.get(event["index"], "") + delta["partial_json"]
        elif event["type"] == "response.function_call_arguments.done":
            calls[event["item_id"]] = event["arguments"]
    return text, list(calls.values())


def _read_whole(path: str, body: Any) -> tuple[str, list[str]]:
    if path == CHAT:
        message = body["choices"][0]["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        return message["content"] or "", calls
    if path == MESSAGES:
        texts = [b["text"] for b in body["content"] if b["type"] == "text"]
        calls = [json.dumps(b["input"]) for b in body["content"] if b["type"] == "tool_use"]
        return "".join(texts), calls
    parts = [p["text"] for i in body["output"] if i["type"] == "message" for p in i["content"]]
    calls = [item["arguments"] for item in body["output"] if item["type"] == "function_call"]
    return "".join(parts), calls


def list_blocks(answer: httpx.Response) -> Iterator[str]:
    """The kinds of the blocks of a message's stream, each filled and closed before the next."""
    count, kind = 0, None
    for event in read_events(answer):
        match event["type"]:
            case "content_block_start":
                assert kind is None
                assert event["index"] == count
                count, kind = count + 1, event["content_block"]["type"]
                yield kind
            case "content_block_delta":
                assert event["index"] == count - 1
                assert KINDS[event["delta"]["type"]] == kind
            case "content_block_stop":
                assert kind is not None
                assert event["index"] == count - 1
                kind = None
    assert kind is None
