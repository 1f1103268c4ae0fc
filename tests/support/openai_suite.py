"""What the `openai` package must find behind a base URL, whatever the model says."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

QUESTION: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4. How many now?"}]


class Clients:
    """The unmodified packages, as clients of one server."""

    def __init__(self, url: str, key: str = "none") -> None:
        options: Any = {"api_key": key, "max_retries": 0, "timeout": 120}
        self.openai: Any = OpenAI(base_url=f"{url}/v1", **options)
        self.anthropic: Any = Anthropic(base_url=url, **options)
        self.options = {"base_url": f"{url}/v1", **options}

    def chat(self, model: str, messages: list[Any] = QUESTION, **fields: Any) -> Any:
        return self.openai.chat.completions.create(model=model, messages=messages, **fields)

    def say(self, model: str, **fields: Any) -> str:
        """The text of an answer, streamed or not."""
        answer = self.chat(model, **fields)
        if not fields.get("stream"):
            return answer.choices[0].message.content or ""
        return "".join(c.choices[0].delta.content or "" for c in answer if c.choices)


Check = Callable[[Clients, str], None]


def check_models(clients: Clients, model: str) -> None:
    assert model in [m.id for m in clients.openai.models.list()]
    assert clients.openai.models.retrieve(model).id == model


def check_whole(clients: Clients, model: str) -> None:
    """One answer, its shape and its token counts."""
    answer = clients.chat(model, temperature=0, max_tokens=200)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    (choice,), usage = answer.choices, answer.usage
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert usage.prompt_tokens > 0
    assert 0 < usage.completion_tokens <= 200
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_stream_says_the_same(clients: Clients, model: str) -> None:
    """Streamed and whole are equal for one seed; usage comes in the last chunk if asked for."""
    asked: dict[str, Any] = {"seed": 11, "temperature": 1.0, "top_p": 0.9, "max_tokens": 60}
    whole = clients.chat(model, **asked)
    usage = {"include_usage": True}
    *chunks, last = clients.chat(model, **asked, stream=True, stream_options=usage)
    assert {c.id for c in chunks} == {last.id}
    assert not last.choices
    for name in ("prompt_tokens", "completion_tokens"):
        assert getattr(last.usage, name) == getattr(whole.usage, name)
    (choice,), pieces = whole.choices, [c.choices[0] for c in chunks]
    assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
    assert (pieces[0].delta.role, pieces[-1].finish_reason) == ("assistant", choice.finish_reason)
    assert len([piece for piece in pieces if piece.delta.content]) > 1


def check_choices(clients: Clients, model: str) -> None:
    asked = {"n": 3, "seed": 1, "max_tokens": 30}
    answer = clients.chat(model, **asked)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    texts, finishes = ["", "", ""], 0
    for chunk in clients.chat(model, **asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes += choice.finish_reason is not None
    assert texts == [c.message.content for c in answer.choices]
    assert finishes == 3


def check_max_tokens(clients: Clients, model: str) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = clients.chat(model, **{name: 2})
        assert answer.usage.completion_tokens <= 2
        assert answer.choices[0].finish_reason == "length"


def check_stop(clients: Clients, model: str) -> None:
    """Stop strings out of the middle of what the model says, across token boundaries too."""
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 60}
    whole = clients.say(model, **asked)
    for at, size in ((len(whole) // 2, 1), (len(whole) // 3, 4), (0, 2)):
        stop = whole[at : at + size]
        (choice,) = clients.chat(model, **asked, stop=[stop, "\x00never"]).choices
        assert choice.message.content == whole[: whole.find(stop)]
        assert choice.finish_reason == "stop"
        assert clients.say(model, **asked, stop=stop, stream=True) == choice.message.content


def check_conversation(clients: Clients, model: str) -> None:
    """System message, an answer sent back as it came, text in parts."""
    first = clients.chat(model, max_tokens=30)
    said = first.choices[0].message
    parts = [{"type": "text", "text": "And if"}, {"type": "text", "text": "he eats 2?"}]
    more = {"role": "user", "content": parts}
    system = {"role": "system", "content": "Work step by step."}
    answer = clients.chat(model, [system, *QUESTION, said, more], max_tokens=30)
    assert answer.usage.prompt_tokens >= first.usage.prompt_tokens
    clients.chat(model, [*QUESTION, said.model_dump(), more], max_tokens=5)


def check_search(clients: Clients, model: str) -> None:
    """By the model's suffix, and by the `search` object: the answer's tokens count, and apart from
    them those of the whole tree."""
    for name, extra in ((f"{model}:beam-4", {}), (model, {"search": {"n": 4}})):
        answer = clients.chat(name, seed=1, extra_body=extra)
        assert answer.choices[0].message.content
        assert answer.model == name
        about, tokens = answer.model_extra["flashedge"], answer.usage.completion_tokens
        assert (about["usage"]["completion_tokens"], about["n"]) == (tokens, 4)
        assert about["usage"]["tree_tokens"] > tokens
        assert about["run_id"]


def check_streamed_search(clients: Clients, model: str) -> None:
    """Reasoning first, in many pieces; then the chosen path."""
    model = f"{model}:beam-4"
    deltas = [c.delta for chunk in clients.chat(model, seed=1, stream=True) for c in chunk.choices]
    reasons = [at for at, d in enumerate(deltas) if getattr(d, "reasoning_content", None)]
    texts = [at for at, d in enumerate(deltas) if d.content]
    assert len(reasons) >= 4
    assert max(reasons) <= min(texts)
    assert "".join(deltas[at].content for at in texts) == clients.say(model, seed=1)


def check_errors(clients: Clients, model: str) -> None:
    """The package's own exceptions, with our message, param and code."""
    with pytest.raises(openai.NotFoundError) as missing:
        clients.chat("no-such-model")
    assert (missing.value.param, missing.value.code) == ("model", "not_found")
    plain = ({"n": 0}, {"temperature": -1}, {"top_p": 3}, {"max_tokens": "x"})
    search = ({"temperature": 9}, {"max_tokens": 0}, {"n": 5}, {"presence_penalty": 1})
    for name, wrongs in ((model, plain), (f"{model}:beam-4", search)):
        for wrong in wrongs:
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
                clients.chat(name, **wrong)


def check_leaving_a_stream(clients: Clients, model: str) -> None:
    """A stream that is closed early leaves the server well."""
    for name in (model, f"{model}:beam-4"):
        stream = clients.chat(name, stream=True)
        next(iter(stream))
        stream.close()
    assert clients.chat(model, max_tokens=5).choices[0].finish_reason


def check_async(clients: Clients, model: str) -> None:
    """Many at once, whole and streamed."""

    async def run() -> None:
        async with AsyncOpenAI(**clients.options) as client:

            async def say(name: str, **fields: Any) -> str:
                create: Any = client.chat.completions.create
                answer = await create(model=name, messages=QUESTION, **fields)
                if not fields.get("stream"):
                    return answer.choices[0].message.content or ""
                return "".join([c.choices[0].delta.content or "" async for c in answer])

            kinds = [(seed, stream) for seed in range(6) for stream in (False, True)]
            asked = [say(model, seed=one, max_tokens=30, stream=stream) for one, stream in kinds]
            *said, found = await asyncio.gather(*asked, say(f"{model}:beam-2"))
        assert all([*said, found])
        assert said[::2] == said[1::2]

    asyncio.run(run())


CHECKS: tuple[Check, ...] = (
    check_models,
    check_whole,
    check_stream_says_the_same,
    check_choices,
    check_max_tokens,
    check_stop,
    check_conversation,
    check_search,
    check_streamed_search,
    check_errors,
    check_leaving_a_stream,
    check_async,
)
