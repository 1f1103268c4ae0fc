"""Conversations that agents send: as the verifier sees them, and without what a search said of
itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flashedge.types import Message, Problem

NOTES_BEGIN, NOTES_END = "[search]\n", "[/search]\n"
_NOTES = re.compile(r"\[search\]\n.*?(\[/search\]\n|\Z)", re.DOTALL)
_INSTRUCTS = frozenset({"system", "developer"})
_ROLES = {"developer": "system", "tool": "user", "function": "user"}


def build_problem(conversation: Iterable[Mapping[str, Any]]) -> Problem:
    """The problem of a conversation in the form that vLLM gives to chat templates.

    Verifiers were trained without tools, and with instructions at the beginning only. A call
    becomes text of the assistant, a tool's result and a later instruction text of the user, and
    neighbours of one role are one message. So is what the assistant said last with the question.
    """
    turns: list[tuple[str, list[str]]] = []  # (role, texts)
    for turn in conversation:
        role = _ROLES.get(str(turn.get("role")), str(turn.get("role")))
        if role == "system" and turns and (len(turns) > 1 or turns[0][0] != "system"):
            role = "user"
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        turns[-1][1].append(_write_turn(turn))
    messages = [
        Message(role=role, content="\n\n".join(filter(None, texts))) for role, texts in turns
    ]
    if len(messages) > 1 and messages[-1].role == "assistant":  # the model goes on or answers again
        said = messages.pop().content
        text = "\n\n".join(part for part in (messages.pop().content, said) if part)
        messages.append(Message(role="user", content=text))
    return Problem(messages=tuple(messages))


def _write_turn(turn: Mapping[str, Any]) -> str:
    text = _join_parts(turn.get("content"))
    if turn.get("role") in ("tool", "function"):
        name = f" {turn['name']}" if turn.get("name") else ""
        return f"Result of the tool{name}: {text or '(nothing)'}"
    calls = [_write_call(call) for call in turn.get("tool_calls") or ()]
    return "\n".join(part for part in (text, *calls) if part)


def _write_call(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    return json.dumps(
        {"name": function.get("name"), "arguments": function.get("arguments")}, ensure_ascii=False
    )


def _join_parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in content or () if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def drop_notes(messages: Iterable[Any]) -> list[Any]:
    """The messages without the notes of earlier searches.

    Clients saw them as reasoning and send them back. Some chat templates would put them into the
    prompt as the model's own thinking.
    """
    return [_drop_note(message) for message in messages]


def _drop_note(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    kept = dict(message)
    for name in ("reasoning", "reasoning_content"):
        if isinstance(text := kept.get(name), str) and NOTES_BEGIN in text:
            kept[name] = _NOTES.sub("", text)
            if not kept[name].strip():
                del kept[name]
    return kept


def gather_instructions(messages: Iterable[Any]) -> list[Any]:
    """The messages for a chat template that knows one message of instructions, at the beginning.

    Several at the beginning become one. A later one becomes the user's, where it stands: put in
    front, it would change the head of the prompt, and all KV behind would be lost.
    """
    head: list[Any] = []
    rest: list[Any] = []
    for message in messages:
        instructs = isinstance(message, Mapping) and message.get("role") in _INSTRUCTS
        if instructs and not rest:
            head.append(message)
        else:
            rest.append({**message, "role": "user"} if instructs else message)
    if len(head) > 1:
        text = "\n\n".join(_join_parts(message.get("content")) for message in head)
        head = [{"role": "system", "content": text}]
    return head + rest


_MEDIA = ("image", "audio", "video")


def find_medium(messages: Iterable[Mapping[str, Any]]) -> str | None:
    """What the first part of the messages is that is no text: image, audio or video."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = str(part.get("type")) if isinstance(part, Mapping) else ""
            for medium in _MEDIA:
                if medium in kind:
                    return medium
    return None


def list_parts(messages: Iterable[Any]) -> list[Any]:
    """The messages with their parts in lists: some validators give iterators, to be read once."""
    listed = []
    for message in messages:
        if isinstance(message, Mapping) and isinstance(message.get("content"), Iterator):
            message = {**message, "content": list(message["content"])}
        listed.append(message)
    return listed
