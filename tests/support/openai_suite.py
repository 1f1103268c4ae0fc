"""What the `openai` package must find behind a base URL.

Each check is a function of (base_url, model, api_key). `CHECKS` holds them all, `SEARCH_CHECKS`
those that need no handlers of vLLM. They make no assumption about what the model says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

QUESTION: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4. How many now?"}]
Check = Callable[[str, str, str], None]


def _client(base_url: str, api_key: str) -> OpenAI:
    return OpenAI(base_url=f"{base_url}/v1", api_key=api_key, max_retries=0, timeout=120)


def _async_client(base_url: str, api_key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{base_url}/v1", api_key=api_key, max_retries=0, timeout=120)


def check_models(base_url: str, model: str, api_key: str = "none") -> None:
    with _client(base_url, api_key) as client:
        assert model in [m.id for m in client.models.list()]
        assert client.models.retrieve(model).id == model


def check_whole(base_url: str, model: str, api_key: str = "none") -> None:
    """One answer, its shape and its token counts."""
    with _client(base_url, api_key) as client:
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=200
        )
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens > 0
    assert 0 < usage.completion_tokens <= 200
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_stream_says_the_same(base_url: str, model: str, api_key: str = "none") -> None:
    """Streamed and whole are equal for one seed; usage comes in the last chunk if asked for."""
    asked: dict[str, Any] = {
        "model": model,
        "messages": QUESTION,
        "seed": 11,
        "temperature": 0.8,
        "max_tokens": 60,
    }
    with _client(base_url, api_key) as client:
        whole = client.chat.completions.create(**asked)
        chunks = list(
            client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
    assert len({c.id for c in chunks}) == 1
    last = chunks.pop()
    assert not last.choices
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len([c for c in chunks if c.choices[0].delta.content]) > 1


def check_seed(base_url: str, model: str, api_key: str = "none") -> None:
    with _client(base_url, api_key) as client:
        said = [
            client.chat.completions.create(
                model=model, messages=QUESTION, seed=5, temperature=1.0, top_p=0.9, max_tokens=40
            )
            .choices[0]
            .message.content
            for _ in range(2)
        ]
    assert said[0] == said[1]


def check_choices(base_url: str, model: str, api_key: str = "none") -> None:
    with _client(base_url, api_key) as client:
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, n=3, seed=1, max_tokens=30
        )
        assert [c.index for c in answer.choices] == [0, 1, 2]
        texts = ["", "", ""]
        finishes = 0
        for chunk in client.chat.completions.create(
            model=model, messages=QUESTION, n=3, seed=1, max_tokens=30, stream=True
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finishes += choice.finish_reason is not None
    assert texts == [c.message.content for c in answer.choices]
    assert finishes == 3


def check_max_tokens(base_url: str, model: str, api_key: str = "none") -> None:
    with _client(base_url, api_key) as client:
        for name in ("max_tokens", "max_completion_tokens"):
            limit: dict[str, Any] = {name: 2}
            answer = client.chat.completions.create(model=model, messages=QUESTION, **limit)
            assert answer.usage is not None
            assert answer.usage.completion_tokens <= 2
            assert answer.choices[0].finish_reason == "length"


def check_stop(base_url: str, model: str, api_key: str = "none") -> None:
    """Stop strings out of the middle of what the model says, across token boundaries too."""
    asked: dict[str, Any] = {"model": model, "messages": QUESTION, "seed": 3, "max_tokens": 60}
    with _client(base_url, api_key) as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        assert whole is not None
        for at, size in ((len(whole) // 2, 1), (len(whole) // 3, 4), (0, 2)):
            stop = whole[at : at + size]
            expected = whole[: whole.find(stop)]
            answer = client.chat.completions.create(**asked, stop=[stop, "\x00never"])
            assert answer.choices[0].message.content == expected
            assert answer.choices[0].finish_reason == "stop"
            streamed = client.chat.completions.create(**asked, stop=stop, stream=True)
            text = "".join(c.choices[0].delta.content or "" for c in streamed if c.choices)
            assert text == expected


def check_conversation(base_url: str, model: str, api_key: str = "none") -> None:
    """System message, an answer sent back as it came, text in parts."""
    with _client(base_url, api_key) as client:
        first = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=30)
        parts = [{"type": "text", "text": "And if"}, {"type": "text", "text": "he eats 2?"}]
        again: list[Any] = [
            {"role": "system", "content": "Work step by step."},
            *QUESTION,
            first.choices[0].message,
            {"role": "user", "content": parts},
        ]
        answer = client.chat.completions.create(model=model, messages=again, max_tokens=30)
        assert answer.usage is not None
        assert first.usage is not None
        assert answer.usage.prompt_tokens >= first.usage.prompt_tokens
        dumped = [*QUESTION, first.choices[0].message.model_dump(), again[-1]]
        client.chat.completions.create(model=model, messages=dumped, max_tokens=5)


def check_search(base_url: str, model: str, api_key: str = "none") -> None:
    """By the model's suffix, and by the `search` object: the answer's tokens count, and the whole
    tree beside them."""
    with _client(base_url, api_key) as client:
        for name, extra in ((f"{model}:beam-4", {}), (model, {"search": {"n": 4}})):
            answer = client.chat.completions.create(
                model=name, messages=QUESTION, seed=1, extra_body=extra
            )
            assert answer.choices[0].message.content
            assert answer.model == name
            assert answer.usage is not None
            about = (answer.model_extra or {})["flashedge"]
            assert answer.usage.completion_tokens == about["usage"]["completion_tokens"]
            assert about["usage"]["tree_tokens"] > answer.usage.completion_tokens
            assert about["n"] == 4
            assert about["run_id"]


def check_streamed_search(base_url: str, model: str, api_key: str = "none") -> None:
    """Reasoning first, in many pieces; then the chosen path."""
    with _client(base_url, api_key) as client:
        kinds, text = [], ""
        for chunk in client.chat.completions.create(
            model=f"{model}:beam-4", messages=QUESTION, seed=1, stream=True
        ):
            if not chunk.choices:
                continue
            delta = chunk.choices[0].delta
            if getattr(delta, "reasoning_content", None):
                kinds.append("reasoning")
            if delta.content:
                kinds.append("content")
                text += delta.content
        whole = client.chat.completions.create(model=f"{model}:beam-4", messages=QUESTION, seed=1)
    assert kinds.count("reasoning") >= 4
    assert kinds == sorted(kinds, reverse=True)  # reasoning comes first
    assert text == whole.choices[0].message.content


def check_errors(base_url: str, model: str, api_key: str = "none") -> None:
    """The package's own exceptions, with our message, param and code."""
    with _client(base_url, api_key) as client:
        create: Any = client.chat.completions.create
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="no-such-model", messages=QUESTION)
        assert missing.value.param == "model"
        assert missing.value.code == "not_found"
        for wrong in ({"n": 0}, {"temperature": -1}, {"top_p": 3}, {"max_tokens": "x"}):
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
                create(model=model, messages=QUESTION, **wrong)


def check_search_errors(base_url: str, model: str, api_key: str = "none") -> None:
    with _client(base_url, api_key) as client:
        for wrong in ({"temperature": 9}, {"max_tokens": 0}, {"n": 5}, {"presence_penalty": 1}):
            body: dict[str, Any] = {"model": f"{model}:beam-4", "messages": QUESTION, **wrong}
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
                client.chat.completions.create(**body)


def check_leaving_a_stream(base_url: str, model: str, api_key: str = "none") -> None:
    """A stream that is closed early leaves the server well."""
    with _client(base_url, api_key) as client:
        for name in (model, f"{model}:beam-4"):
            stream = client.chat.completions.create(model=name, messages=QUESTION, stream=True)
            next(iter(stream))
            stream.close()
        answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=5)
        assert answer.choices[0].finish_reason


def check_async(base_url: str, model: str, api_key: str = "none") -> None:
    """Many at once, whole and streamed."""

    async def whole(client: AsyncOpenAI, seed: int) -> str:
        answer = await client.chat.completions.create(
            model=model, messages=QUESTION, seed=seed, max_tokens=30
        )
        return answer.choices[0].message.content or ""

    async def streamed(client: AsyncOpenAI, seed: int) -> str:
        chunks = await client.chat.completions.create(
            model=model, messages=QUESTION, seed=seed, max_tokens=30, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in chunks])

    async def search(client: AsyncOpenAI) -> str:
        answer = await client.chat.completions.create(model=f"{model}:beam-2", messages=QUESTION)
        return answer.choices[0].message.content or ""

    async def run() -> None:
        async with _async_client(base_url, api_key) as client:
            asked = [f(client, seed) for seed in range(6) for f in (whole, streamed)]
            *said, found = await asyncio.gather(*asked, search(client))
        assert all(said)
        assert found
        assert said[::2] == said[1::2]

    asyncio.run(run())


SEARCH_CHECKS: tuple[Check, ...] = (check_models, check_streamed_search)
CHECKS: tuple[Check, ...] = (
    *SEARCH_CHECKS,
    check_search,
    check_search_errors,
    check_whole,
    check_stream_says_the_same,
    check_seed,
    check_choices,
    check_max_tokens,
    check_stop,
    check_conversation,
    check_errors,
    check_leaving_a_stream,
    check_async,
)
