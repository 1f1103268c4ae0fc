"""Plain chat: whole characters, stop strings, choices, and why each ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashedge.engine.base import Chunk, ExtendRequest
from flashedge.engine.sim.clock import VirtualTimePolicy
from flashedge.engine.sim.pair import SimulatedGenerator
from flashedge.errors import RequestError
from flashedge.runtime.chat import ChatDelta, ChatSpec, IncrementalText, stream_choice
from flashedge.types import FinishReason, Message, Sampling
from tests.support.engine_rig import settle
from tests.support.runtime_rig import CONFIG, MODEL

EOS = 0


@pytest.fixture
def event_loop_policy() -> VirtualTimePolicy:
    return VirtualTimePolicy()


class ByteCodec:
    """A token is a byte (1 to 255), 0 ends the answer. Like byte-level BPE at its worst."""

    eos_ids = frozenset({EOS})
    vocab_size = 256
    thinks = False

    def encode_chat(self, messages: Sequence[Message], variables: object = None) -> tuple[int, ...]:
        return tuple(b"".join(m.content.encode() for m in messages))

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(i for i in token_ids if i != EOS).decode(errors="replace")


class Words(ByteCodec):
    """A token is a word; a decoded text does not begin with its space (as sentencepiece's)."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(f"w{i}" for i in token_ids if i != EOS)


class Scripted:
    """A generator that says `pieces`, a chunk each, and ends with `finish`."""

    codec = ByteCodec()
    max_model_len = 100

    def __init__(self, pieces: Sequence[bytes], finish: FinishReason = FinishReason.STOP) -> None:
        self.pieces, self.finish = pieces, finish
        self.requests: list[ExtendRequest] = []
        self.open = 0

    async def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        self.requests.append(request)
        self.open += 1
        try:
            for i, piece in enumerate(self.pieces):
                await asyncio.sleep(1)
                last = i == len(self.pieces) - 1
                ids = (*piece, EOS) if last and self.finish is FinishReason.STOP else tuple(piece)
                yield Chunk(
                    token_ids=ids,
                    logprobs=(-0.5,) * len(ids),
                    finish=self.finish if last else None,
                )
        finally:
            self.open -= 1


SPEC = ChatSpec(messages=(Message(role="user", content="hi"),), sampling=Sampling())


async def say(generator: Any, spec: ChatSpec = SPEC, seed: int = 1) -> list[ChatDelta]:
    prompt = generator.codec.encode_chat(spec.messages)
    async with aclosing(stream_choice(generator, spec, prompt, 0, seed)) as deltas:
        return [delta async for delta in deltas]


def text_of(deltas: list[ChatDelta]) -> str:
    return "".join(delta.text for delta in deltas)


# ---------------------------------------------------------------- text


@given(st.text(alphabet=st.sampled_from("a é€😀\n"), max_size=20), st.data())
def test_text_is_whole_however_it_is_cut(text: str, data: st.DataObject) -> None:
    ids = text.encode()
    decoder = IncrementalText(ByteCodec())
    told = ""
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        told += decoder.feed(tuple(ids[:size]))
        assert text.startswith(told)
        assert "\N{REPLACEMENT CHARACTER}" not in told
        ids = ids[size:]
    assert told + decoder.flush() == text


@given(st.binary(max_size=24).filter(lambda b: EOS not in b), st.data())
def test_bytes_that_are_no_text_come_out_as_decoded(ids: bytes, data: st.DataObject) -> None:
    """Whatever the bytes, what comes out in pieces is what the whole decodes to."""
    decoder, told, left = IncrementalText(ByteCodec()), "", ids
    while left:
        size = data.draw(st.integers(1, len(left)))
        told += decoder.feed(tuple(left[:size]))
        left = left[size:]
    assert told + decoder.flush() == ids.decode(errors="replace")


def test_spaces_between_words_are_kept() -> None:
    decoder = IncrementalText(Words())
    assert [decoder.feed((i,)) for i in (1, 2, 3, 4)] == ["w1", " w2", " w3", " w4"]
    assert decoder.feed(()) == decoder.flush() == ""


def test_half_a_character_at_the_end() -> None:
    decoder = IncrementalText(ByteCodec())
    assert decoder.feed(tuple("é".encode()[:1])) == ""
    assert decoder.feed(()) == ""
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"


# ---------------------------------------------------------------- a choice


async def test_deltas() -> None:
    deltas = await say(Scripted([b"4", b"2 \xe2", b"\x82\xac"]))
    assert [delta.text for delta in deltas] == ["4", "", "2 €"]
    assert [delta.finish for delta in deltas] == [None, None, "stop"]
    assert [delta.token_ids for delta in deltas] == [(52,), (50, 32, 0xE2), (0x82, 0xAC, EOS)]
    assert {delta.prompt_tokens for delta in deltas} == {2}


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.STEP_LIMIT, "length"),
    ],
)
async def test_why_it_ended(reason: FinishReason, told: str) -> None:
    deltas = await say(Scripted([b"a", b"b\xe2"], reason))
    assert text_of(deltas) == "ab\N{REPLACEMENT CHARACTER}"
    assert [delta.finish for delta in deltas] == [None, told]


async def test_a_last_chunk_without_a_token() -> None:
    deltas = await say(Scripted([b"a\xe2", b""], FinishReason.LENGTH))
    assert [(d.text, d.finish) for d in deltas] == [
        ("", None),
        ("a\N{REPLACEMENT CHARACTER}", "length"),
    ]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"go on EN", b"D and", b" more"], "go on "),
        ([b"go E", b"N", b"ough"], "go ENough"),
        ([b"go EN"], "go EN"),
        ([b"END"], ""),
        ([b"a", b"END"], "a"),
        (["é€".encode()[:4], "é€".encode()[4:] + b"END", b"x"], "é€"),
    ],
)
async def test_stop_strings(pieces: list[bytes], text: str) -> None:
    generator = Scripted(pieces, FinishReason.LENGTH)
    deltas = await say(generator, replace(SPEC, stop=("END",)))
    assert text_of(deltas) == text
    stopped = "END" in b"".join(pieces).decode()
    assert deltas[-1].finish == ("stop" if stopped else "length")
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert generator.open == 0


async def test_a_stop_ends_the_request_at_once() -> None:
    generator = Scripted([b"x"] * 50)
    deltas = await say(generator, replace(SPEC, stop=("xxx",)))
    assert (text_of(deltas), len(deltas), generator.open) == ("", 3, 0)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)


@pytest.mark.parametrize(("asked", "given"), [(None, 98), (5, 5), (98, 98), (500, 98)])
async def test_room(asked: int | None, given: int) -> None:
    generator = Scripted([b"a"])
    await say(generator, replace(SPEC, max_tokens=asked))
    assert generator.requests[0].max_tokens == given
    assert not generator.requests[0].to_boundary


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("seed", -1),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("stop", ("",)),
        ("stop", ("a",) * 17),
        ("messages", ()),
        ("messages", (Message(role="robot", content="x"),)),
        ("messages", (Message(role="assistant", content="x"),)),
        ("sampling", Sampling(temperature=float("nan"))),
        ("sampling", Sampling(top_p=0.0)),
        ("sampling", Sampling(top_k=-1)),
    ],
)
def test_refused(field: str, value: object) -> None:
    with pytest.raises(RequestError) as e:
        replace(SPEC, **{field: value})
    assert e.value.param


# ---------------------------------------------------------------- on a simulated engine


async def test_a_choice_is_the_engines_text() -> None:
    generator = SimulatedGenerator(CONFIG, MODEL)
    deltas = await say(generator)
    ids = [i for delta in deltas for i in delta.token_ids]
    assert text_of(deltas) == generator.codec.decode(ids)
    assert deltas[-1].finish == "stop"
    assert [d.token_ids for d in await say(generator)] == [d.token_ids for d in deltas]
    assert [d.token_ids for d in await say(generator, seed=2)] != [d.token_ids for d in deltas]


async def test_closing_a_choice_frees_its_blocks() -> None:
    generator = SimulatedGenerator(CONFIG, MODEL)
    prompt = generator.codec.encode_chat(SPEC.messages)
    for taken in range(12):
        deltas = stream_choice(generator, SPEC, prompt, 0, taken)
        for _ in range(taken):
            await anext(deltas)
        await deltas.aclose()
        await settle(generator, 0.001)
