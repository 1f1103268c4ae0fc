"""The stock twin of the rule entropy: it cuts the stream of a request that runs on."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from flashedge.engine.base import Chunk
from flashedge.engine.vllm.stock import cut_before_uncertain
from flashedge.search.entropy import EntropyRule
from flashedge.types import FinishReason

RULE = EntropyRule(threshold=1.0, min_tokens=2)


class Stream:
    """A request whose tokens are drawn with these entropies, a few at a time."""

    def __init__(self, *chunks: list[float], finish: FinishReason) -> None:
        self.chunks = chunks
        self.finish = finish
        self.is_closed = False

    async def read(self) -> AsyncGenerator[Chunk]:
        try:
            for at, entropies in enumerate(self.chunks):
                count = len(entropies)
                yield Chunk(
                    token_ids=(7,) * count,
                    logprobs=(-0.5,) * count,
                    entropies=tuple(entropies),
                    finish=self.finish if at + 1 == len(self.chunks) else None,
                    cached_tokens=16 if at == 0 else 0,
                )
        finally:
            self.is_closed = True


async def cut(stream: Stream) -> list[Chunk]:
    return [chunk async for chunk in cut_before_uncertain(stream.read(), RULE)]


async def test_a_stream_ends_before_its_first_uncertain_token() -> None:
    stream = Stream([2.0, 0.1], [0.2, 1.5, 0.1], [0.3], finish=FinishReason.STOP)
    first, last = await cut(stream)
    assert first.finish is None
    assert (last.token_ids, last.logprobs, last.entropies) == ((7,), (-0.5,), (0.2,))
    assert last.finish is FinishReason.BOUNDARY
    assert stream.is_closed, "the request is cancelled"


async def test_a_step_may_end_between_two_chunks() -> None:
    first, last = await cut(Stream([0.1, 0.1], [1.5], finish=FinishReason.STEP_LIMIT))
    assert (first.finish, last.finish) == (None, FinishReason.BOUNDARY)
    assert last.token_ids == last.entropies == ()


async def test_a_certain_stream_is_left_alone() -> None:
    stream = Stream([0.1, 0.1], [0.9], finish=FinishReason.STOP)
    assert await cut(stream) == [chunk async for chunk in stream.read()]


async def test_an_uncertain_end_of_the_answer_is_drawn_again() -> None:
    (only,) = await cut(Stream([0.1, 0.1, 1.2], finish=FinishReason.STOP))
    assert (len(only.token_ids), only.finish) == (2, FinishReason.BOUNDARY)
