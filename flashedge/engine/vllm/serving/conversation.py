"""Adapts agents' conversations for verifiers and chat templates.

Checked with vLLM 0.32.0.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError

from flashedge.engine.http_requests import get_request, get_searcher
from flashedge.engine.vllm.serving.outside_text import guard_renderer, is_guardable, render_media
from flashedge.engine.vllm.serving.twin_parser import build_search_parser, build_twin_parser
from flashedge.types import Message, Problem

NOTES_BEGIN, NOTES_END = "[search]\n", "[/search]\n"
"""Marks around the notes of a search in what clients see as reasoning."""
_NOTES = re.compile(rf"{re.escape(NOTES_BEGIN)}.*?({re.escape(NOTES_END)}|\Z)", re.DOTALL)
_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_VERIFIER_ROLES = {"developer": "system", "tool": "user", "function": "user"}


def build_problem(conversation: Iterable[Mapping[str, Any]]) -> Problem:
    """Build the problem that a verifier sees. conversation: in vLLM's form for chat templates.

    Verifiers were trained without tools, and with instructions at the beginning only. So calls
    become text of the assistant, results of tools and later instructions become text of the user,
    and neighbours of one role are joined. If the assistant spoke last, its text becomes part of the
    question, since the answer continues it.
    """
    turns: list[tuple[str, list[str]]] = []  # (role, texts)
    for turn in conversation:
        role = _VERIFIER_ROLES.get(str(turn.get("role")), str(turn.get("role")))
        if role == "system" and turns and (len(turns) > 1 or turns[0][0] != "system"):
            role = "user"
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        turns[-1][1].append(_write_turn(turn))
    messages = [
        Message(role=role, content="\n\n".join(filter(None, texts))) for role, texts in turns
    ]
    if len(messages) > 1 and messages[-1].role == "assistant":
        said = messages.pop().content
        text = "\n\n".join(part for part in (messages.pop().content, said) if part)
        messages.append(Message(role="user", content=text))
    return Problem(messages=tuple(messages))


def _write_turn(turn: Mapping[str, Any]) -> str:
    text = _join_parts(turn.get("content"))
    if turn.get("role") in ("tool", "function"):
        name = f" {turn['name']}" if turn.get("name") else ""
        return f"Result of the tool{name}: {text or '(nothing)'}"
    functions = [call.get("function") or {} for call in turn.get("tool_calls") or ()]
    calls = [{name: each.get(name) for name in ("name", "arguments")} for each in functions]
    written = [json.dumps(call, ensure_ascii=False) for call in calls]
    return "\n".join(part for part in (text, *written) if part)


def _join_parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in content or () if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def drop_notes(messages: Iterable[Any]) -> list[Any]:
    """Drop the notes of earlier searches, which clients got as reasoning and send back. Some chat
    templates would put them into the prompt as the model's own thinking."""
    return [_drop_note(each) if isinstance(each, Mapping) else each for each in messages]


def _drop_note(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(message)
    for name in ("reasoning", "reasoning_content"):
        if isinstance(text := kept.get(name), str) and NOTES_BEGIN in text:
            kept[name] = _NOTES.sub("", text)
            if not kept[name].strip():
                del kept[name]
    return kept


def gather_instructions(messages: Iterable[Any]) -> list[Any]:
    """Adapt messages to a chat template that takes only one message of instructions, the first.

    Several at the beginning become one. A later one becomes the user's and keeps its place: if it
    moved to the front, no KV of the earlier prompt could be reused.
    """
    head: list[Any] = []
    rest: list[Any] = []
    for message in messages:
        instructs = isinstance(message, Mapping) and message.get("role") in _INSTRUCTION_ROLES
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
    """The kind of the first part that is image, audio or video. None if there is no such part."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    kinds = (str(part.get("type")) for part in parts if isinstance(part, Mapping))
    return next((medium for kind in kinds for medium in _MEDIA if medium in kind), None)


def list_parts(messages: Iterable[Any]) -> list[Any]:
    """Make a list of each content that is an iterator, since contents are read twice."""
    return [
        {**each, "content": list(each["content"])}
        if isinstance(each, Mapping) and isinstance(each.get("content"), Iterator)
        else each
        for each in messages
    ]


def prepare_conversations(state: Any) -> None:
    """Change how the handlers in `state` read conversations.

    Notes of earlier searches are dropped, texts can't become control tokens, media are refused if
    the model reads text only, and later instructions keep their place. If the request's tags say
    so, the answer continues what the assistant said last.
    """
    renderer = state.online_renderer
    render = renderer.preprocess_chat
    refuse = guard_renderer(renderer.renderer)
    is_guarded = is_guardable(renderer.renderer)
    messages_handler = state.anthropic_serving_messages
    is_system_first = messages_handler._merge_inline_system
    messages_handler._merge_inline_system = False

    async def preprocess_chat(request: Any, messages: Any, **options: Any) -> Any:
        messages = list_parts(messages)
        if is_system_first:
            messages = gather_instructions(messages)
        if get_request().tags.continues:
            request.add_generation_prompt, request.continue_final_message = False, True
        medium = find_medium(message for message in messages if isinstance(message, Mapping))
        if medium is not None and not renderer.model_config.is_multimodal_model:
            raise VLLMValidationError(
                f"{request.model} reads text only, but the conversation has a part of kind"
                f" {medium}; send text in its place, or ask a model that reads it",
                parameter="messages",
            )
        if refuse is not None and (medium is not None or not is_guarded):
            given = getattr(request, "chat_template_kwargs", None)
            tools = options.get("tool_dicts")
            refuse({"messages": messages, "tools": tools, "chat_template_kwargs": given})
        with render_media(medium is not None):
            return await render(request, drop_notes(messages), **options)

    renderer.preprocess_chat = preprocess_chat


def adapt_handlers(state: Any) -> None:
    """Let the handlers in `state` answer by searches. vLLM's `init_app_state` has made them."""
    models = state.openai_serving_models
    models.is_base_model = lambda name: True  # `api.protocols.switch` has checked it
    models.model_name = lambda lora_request=None: get_searcher().model
    _replace_parsers(state, build_search_parser)
    render = state.online_renderer.preprocess_chat

    async def preprocess_chat(*args: Any, **options: Any) -> Any:
        conversation, inputs = await render(*args, **options)
        get_searcher().take_conversation(build_problem(conversation))
        return conversation, inputs

    state.online_renderer.preprocess_chat = preprocess_chat


def join_twins(state: Any) -> None:
    """Make the handlers' streamed answers equal to their whole ones. See `twin_parser`."""
    _replace_parsers(state, lambda base: None if base is None else build_twin_parser(base))


def _replace_parsers(state: Any, build: Callable[[Any], Any]) -> None:
    for handler in (state.openai_serving_chat, state.anthropic_serving_messages):
        handler.parser_cls = build(handler.parser_cls)
    responses = state.openai_serving_responses
    responses.parser = build(responses.parser)
