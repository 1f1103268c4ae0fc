"""What the handlers read of a conversation before vLLM renders it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.engine.http_requests import RequestTags, tag_requests
from flashedge.engine.vllm.serving.conversation import prepare_conversations

USER = {"role": "user", "content": "u"}
LATE = {"role": "system", "content": "late"}
TURNED = {"role": "user", "content": "late"}


class State:
    """What `init_app_state` leaves, as far as conversations are concerned."""

    def __init__(self, *, is_system_first: bool) -> None:
        self.rendered: list[Any] = []
        renderer = SimpleNamespace(tokenizer=None)
        config = SimpleNamespace(is_multimodal_model=False)
        self.online_renderer: Any = SimpleNamespace(
            renderer=renderer, model_config=config, preprocess_chat=self._render
        )
        self.anthropic_serving_messages = SimpleNamespace(_merge_inline_system=is_system_first)

    async def _render(self, request: Any, messages: Any, **options: Any) -> None:
        self.rendered = messages

    async def render(self, messages: list[Any], *, continues: bool = False) -> Any:
        request = SimpleNamespace(
            model="m", add_generation_prompt=True, continue_final_message=False
        )
        async with tag_requests(RequestTags(client="me", seed=1, continues=continues)):
            await self.online_renderer.preprocess_chat(request, messages)
        return request


@pytest.mark.parametrize(
    ("is_system_first", "seen"), [(True, [USER, TURNED, USER]), (False, [USER, LATE, USER])]
)
async def test_later_instructions_stay_where_they_are(
    is_system_first: bool, seen: list[Any]
) -> None:
    """Also those of Anthropic's protocol, whose handler would put them in front."""
    state = State(is_system_first=is_system_first)
    prepare_conversations(state)
    assert not state.anthropic_serving_messages._merge_inline_system
    await state.render([USER, LATE, USER])
    assert state.rendered == seen


async def test_an_answer_goes_on_where_the_requests_tags_say_so() -> None:
    state = State(is_system_first=False)
    prepare_conversations(state)
    for continues in (False, True):
        request = await state.render([USER], continues=continues)
        assert request.continue_final_message is continues
        assert request.add_generation_prompt is not continues
