"""What the `openai` package must find behind a base URL.

Each check is a function of base URL and model. `CHECKS` holds them all, `SEARCH_CHECKS` those that
need no handlers of vLLM. They make no assumption about what the model says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

QUESTION: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4. How many now?"}]
Check = Callable[[str, str], None]


def connect(url: str, kind: type[Any] = OpenAI) -> Any:
    return kind(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def bind(client: Any, model: str) -> Any:
    """A chat completion of `QUESTION`, as a function of its further fields."""
    return partial(client.chat.completions.create, model=model, messages=QUESTION)


def join_streamed(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def check_models(url: str, model: str) -> None:
    with connect(url) as client:
        assert model in [m.id for m in client.models.list()]
        assert client.models.retrieve(model).id == model


def check_whole(url: str, model: str) -> None:
    with connect(url) as client:
        answer = bind(client, model)(temperature=0, max_tokens=200)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0
    assert 0 < usage.completion_tokens <= 200
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_stream_says_the_same(url: str, model: str) -> None:
    """Streamed and whole are equal for one seed; usage comes in the last chunk if asked for."""
    with connect(url) as client:
        ask = partial(bind(client, model), seed=11, temperature=0.8, max_tokens=60)
        whole = ask()
        chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert len({c.id for c in chunks}) == 1
    last = chunks.pop()
    assert not last.choices
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert join_streamed(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len([c for c in chunks if c.choices[0].delta.content]) > 1


def check_seed(url: str, model: str) -> None:
    with connect(url) as client:
        ask = partial(bind(client, model), seed=5, temperature=1.0, top_p=0.9, max_tokens=40)
        assert ask().choices[0].message.content == ask().choices[0].message.content


def check_choices(url: str, model: str) -> None:
    with connect(url) as client:
        ask = partial(bind(client, model), n=3, seed=1, max_tokens=30)
        answer = ask()
        assert [c.index for c in answer.choices] == [0, 1, 2]
        texts, finishes = ["", "", ""], 0
        for choice in (choice for chunk in ask(stream=True) for choice in chunk.choices):
            texts[choice.index] += choice.delta.content or ""
            finishes += choice.finish_reason is not None
    assert texts == [c.message.content for c in answer.choices]
    assert finishes == 3


def check_max_tokens(url: str, model: str) -> None:
    with connect(url) as client:
        for name in ("max_tokens", "max_completion_tokens"):
            answer = bind(client, model)(**{name: 2})
            assert answer.usage.completion_tokens <= 2
            assert answer.choices[0].finish_reason == "length"


def check_stop(url: str, model: str) -> None:
    """Stop strings out of the middle of what the model says, across token boundaries too."""
    with connect(url) as client:
        ask = partial(bind(client, model), seed=3, max_tokens=60)
        whole = ask().choices[0].message.content
        for at, size in ((len(whole) // 2, 1), (len(whole) // 3, 4), (0, 2)):
            stop = whole[at : at + size]
            expected = whole[: whole.find(stop)]
            answer = ask(stop=[stop, "\x00never"])
            assert answer.choices[0].message.content == expected
            assert answer.choices[0].finish_reason == "stop"
            assert join_streamed(ask(stop=stop, stream=True)) == expected


def check_conversation(url: str, model: str) -> None:
    with connect(url) as client:
        create = client.chat.completions.create
        first = create(model=model, messages=QUESTION, max_tokens=30)
        parts = [{"type": "text", "text": "And if"}, {"type": "text", "text": "he eats 2?"}]
        said, more = first.choices[0].message, {"role": "user", "content": parts}
        system = {"role": "system", "content": "Work step by step."}
        answer = create(model=model, messages=[system, *QUESTION, said, more], max_tokens=30)
        assert answer.usage.prompt_tokens >= first.usage.prompt_tokens
        create(model=model, messages=[*QUESTION, said.model_dump(), more], max_tokens=5)


def check_search(url: str, model: str) -> None:
    """By the model's suffix, and by the `search` object: the usage has the answer's tokens, and the
    `flashedge` object those of the whole tree."""
    with connect(url) as client:
        for name, extra in ((f"{model}:beam-4", {}), (model, {"search": {"n": 4}})):
            answer = bind(client, name)(seed=1, extra_body=extra)
            assert answer.choices[0].message.content
            assert answer.model == name
            about = answer.model_extra["flashedge"]
            assert answer.usage.completion_tokens == about["usage"]["completion_tokens"]
            assert about["usage"]["tree_tokens"] > answer.usage.completion_tokens
            assert about["n"] == 4
            assert about["run_id"]


def check_streamed_search(url: str, model: str) -> None:
    """Reasoning first, in many pieces; then the chosen path."""
    with connect(url) as client:
        ask = partial(bind(client, f"{model}:beam-4"), seed=1)
        deltas = [chunk.choices[0].delta for chunk in ask(stream=True) if chunk.choices]
        whole = ask()
    said = [(getattr(d, "reasoning_content", None), d.content) for d in deltas]
    kinds = ["reasoning" if thought else "content" for thought, text in said if thought or text]
    assert kinds.count("reasoning") >= 4
    assert kinds == sorted(kinds, reverse=True)  # reasoning comes first
    assert "".join(text or "" for _, text in said) == whole.choices[0].message.content


def check_errors(url: str, model: str) -> None:
    with connect(url) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            bind(client, "no-such-model")()
        assert (missing.value.param, missing.value.code) == ("model", "not_found")
        for wrong in ({"n": 0}, {"temperature": -1}, {"top_p": 3}, {"max_tokens": "x"}):
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
                bind(client, model)(**wrong)


def check_search_errors(url: str, model: str) -> None:
    with connect(url) as client:
        for wrong in ({"temperature": 9}, {"max_tokens": 0}, {"n": 5}, {"presence_penalty": 1}):
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
                bind(client, f"{model}:beam-4")(**wrong)


def check_leaving_a_stream(url: str, model: str) -> None:
    with connect(url) as client:
        for name in (model, f"{model}:beam-4"):
            stream = bind(client, name)(stream=True)
            next(iter(stream))
            stream.close()
        assert bind(client, model)(max_tokens=5).choices[0].finish_reason


def check_async(url: str, model: str) -> None:
    async def whole(ask: Any, **fields: Any) -> str:
        return str((await ask(**fields)).choices[0].message.content or "")

    async def streamed(ask: Any, **fields: Any) -> str:
        return join_streamed([chunk async for chunk in await ask(**fields, stream=True)])

    async def run() -> None:
        async with connect(url, AsyncOpenAI) as client:
            ask = partial(bind(client, model), max_tokens=30)
            asked = [f(ask, seed=seed) for seed in range(6) for f in (whole, streamed)]
            *said, found = await asyncio.gather(*asked, whole(bind(client, f"{model}:beam-2")))
        assert all(said)
        assert found
        assert said[::2] == said[1::2]

    asyncio.run(run())


SEARCH_CHECKS: tuple[Check, ...] = (check_models, check_streamed_search)
CHECKS: tuple[Check, ...] = (
    *(*SEARCH_CHECKS, check_search, check_search_errors, check_whole, check_stream_says_the_same),
    *(check_seed, check_choices, check_max_tokens, check_stop, check_conversation, check_errors),
    *(check_leaving_a_stream, check_async),
)
