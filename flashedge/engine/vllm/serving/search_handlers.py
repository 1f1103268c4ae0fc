"""Changes what vLLM's protocol handlers do: what they read of a conversation, and for searches the
names of models and what they show.

Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError

from flashedge.engine.request_tags import get_searcher, get_tags
from flashedge.engine.vllm.serving.conversation import (
    build_problem,
    drop_notes,
    find_medium,
    gather_instructions,
    list_parts,
)
from flashedge.engine.vllm.serving.outside_text import guard_renderer, is_guardable, render_media
from flashedge.engine.vllm.serving.search_parser import build_search_parser
from flashedge.engine.vllm.serving.twin_parser import build_twin_parser


def prepare_conversations(state: Any) -> None:
    """Change how the handlers in `state` read conversations.

    They leave out the notes of earlier searches, no control token in a text acts, media are refused
    where the model reads text only, later instructions keep their place, and an answer goes on with
    what the assistant said last where the request's tags say so.
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
        if get_tags().continues:
            request.add_generation_prompt, request.continue_final_message = False, True
        medium = find_medium(message for message in messages if isinstance(message, Mapping))
        if medium is not None and not renderer.model_config.is_multimodal_model:
            _refuse_medium(request, medium)
        if refuse is not None and (medium is not None or not is_guarded):
            given = getattr(request, "chat_template_kwargs", None)
            tools = options.get("tool_dicts")
            refuse({"messages": messages, "tools": tools, "chat_template_kwargs": given})
        with render_media(medium is not None):
            return await render(request, drop_notes(messages), **options)

    renderer.preprocess_chat = preprocess_chat


def _refuse_medium(request: Any, medium: str) -> None:
    raise VLLMValidationError(
        f"{request.model} reads text only, but the conversation has a part of kind {medium};"
        " send text in its place, or ask a model that reads it",
        parameter="messages",
    )


def adapt_handlers(state: Any) -> None:
    """Let the handlers that `init_app_state` has put into `state` answer by searches."""
    models = state.openai_serving_models
    models.is_base_model = lambda name: True  # `api.protocols.switch` has checked it
    models.model_name = lambda lora_request=None: get_searcher().model
    _tell_conversations(state.online_renderer)
    _replace_parsers(state, build_search_parser)


def join_twins(state: Any) -> None:
    """Let the handlers' streams say what their whole answers say."""
    _replace_parsers(state, lambda base: None if base is None else build_twin_parser(base))


def _replace_parsers(state: Any, build: Callable[[Any], Any]) -> None:
    for handler in (state.openai_serving_chat, state.anthropic_serving_messages):
        handler.parser_cls = build(handler.parser_cls)
    responses = state.openai_serving_responses
    responses.parser = build(responses.parser)


def _tell_conversations(renderer: Any) -> None:
    """Show the search each conversation that is rendered for it."""
    render = renderer.preprocess_chat

    async def preprocess_chat(*args: Any, **options: Any) -> Any:
        conversation, inputs = await render(*args, **options)
        get_searcher().take_conversation(build_problem(conversation))
        return conversation, inputs

    renderer.preprocess_chat = preprocess_chat
