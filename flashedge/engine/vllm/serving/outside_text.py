"""Keeps what clients send to vLLM's handlers from becoming control tokens.

Chat completions, responses and messages render their conversation by one method of vLLM's renderer.
This module replaces it with one that encodes with `prompts.encoder`. The prompt of /v1/completions
and of /tokenize is the client's own as a whole, so control tokens in it are encoded as such.

Checked with vLLM 0.32.0.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.renderers.hf import HfRenderer, resolve_chat_template
from vllm.utils.mistral import is_mistral_tokenizer

from flashedge.engine.vllm.prompts.encoder import PromptEncoder, refuse_tokens
from flashedge.engine.vllm.prompts.spelling import PrivateSpelling
from flashedge.errors import RequestError
from flashedge.types import TokenIds

Refuse = Callable[[Mapping[str, Any]], None]
"""Raises VLLMValidationError for a request with a control token in its texts."""

_has_media: ContextVar[bool] = ContextVar("has_media", default=False)


@contextmanager
def render_media(has_media: bool) -> Iterator[None]:
    """Within the block, let vLLM encode a conversation that has media: it marks their places."""
    token = _has_media.set(has_media)
    try:
        yield
    finally:
        _has_media.reset(token)


def guard_renderer(renderer: Any) -> Refuse | None:
    """Let a renderer encode conversations so that texts can't become control tokens.

    Returns a check for conversations that vLLM encodes itself, or None if no check is needed:
    Mistral's own tokenizer never reads control tokens in texts.
    """
    if renderer.tokenizer is None or is_mistral_tokenizer(renderer.tokenizer):
        return None
    if not is_guardable(renderer):
        tokens = [*renderer.tokenizer.all_special_tokens, *renderer.tokenizer.get_added_vocab()]
        return partial(refuse, PrivateSpelling(tokens))
    # The handlers of plain requests and of searches share the renderer.
    prompts = vars(renderer).get("prompts") or _replace_template(renderer)
    return partial(refuse, prompts.spelling)


def is_guardable(renderer: Any) -> bool:
    """Whether the renderer uses the model's chat template, so that its method can be replaced."""
    return isinstance(renderer, HfRenderer)


def _replace_template(renderer: Any) -> PromptEncoder:
    tokenizer = renderer.tokenizer
    prompts = PromptEncoder(tokenizer)
    render = renderer._apply_chat_template_async
    max_chars = renderer.model_config.max_model_len * tokenizer.max_chars_per_token

    def encode(text: str, is_guarded: bool) -> TokenIds:
        return prompts.encode(prompts.spell_rendered(text, is_guarded=is_guarded))

    async def apply(
        config: Any,
        given: Any,
        conversation: list[Any],
        *,
        tools: Any = None,
        chat_template: str | None = None,
        **options: Any,
    ) -> Any:
        source = resolve_chat_template(given, chat_template, tools, model_config=config)
        if source is None or _has_media.get():
            return await render(
                config, given, conversation, tools=tools, chat_template=chat_template, **options
            )
        guarded = await asyncio.to_thread(prompts.guard, source)
        if guarded is not None:
            options = {**prompts.variables, **options}
        else:
            refuse(prompts.spelling, {"messages": conversation, "tools": tools, **options})
        options["tokenize"] = False
        text = await render(
            config, given, conversation, tools=tools, chat_template=guarded or source, **options
        )
        if len(text) > max_chars:
            raise VLLMValidationError(
                "This model's maximum context length is"  # by these words clients know an overflow
                f" {renderer.model_config.max_model_len} tokens, which are {max_chars}"
                f" characters at most. However, the conversation has {len(text)}. Shorten it.",
                parameter="messages",
            )
        return list(await asyncio.to_thread(encode, text, guarded is not None))

    renderer._apply_chat_template_async = apply
    vars(renderer)["prompts"] = prompts
    return prompts


def refuse(spelling: PrivateSpelling, request: Mapping[str, Any]) -> None:
    """Raise VLLMValidationError for a control token in a request's texts."""
    try:
        refuse_tokens(spelling, request)
    except RequestError as error:
        raise VLLMValidationError(error.line, parameter=error.param) from error
