"""The stock twin of the rule entropy: it cuts the stream of a request that runs on."""

from collections.abc import AsyncGenerator

import pytest

from flashedge.engine.base import Chunk
from flashedge.engine.vllm.stock import cut_before_uncertain
from flashedge.search.step_rules import EntropyRule
from flashedge.types import FinishReason

RULE = EntropyRule(threshold=1.0, min_tokens=2)


class Stream:
    """A request whose tokens are drawn with these entropies, a few at a time."""

    def __init__(self, *chunks: list[float], finish: FinishReason) -> None:
        self.chunks = [
            Chunk(
                token_ids=(7,) * len(entropies),
                logprobs=(-0.5,) * len(entropies),
                entropies=tuple(entropies),
                finish=finish if at + 1 == len(chunks) else None,
                cached_tokens=16 if at == 0 else 0,
            )
            for at, entropies in enumerate(chunks)
        ]
        self.is_closed = False

    async def read(self) -> AsyncGenerator[Chunk]:
        try:
            for chunk in self.chunks:
                yield chunk
        finally:
            self.is_closed = True


@pytest.mark.parametrize(
    ("chunks", "kept", "finish"),
    [
        ([[2.0, 0.1], [0.2, 1.5, 0.1], [0.3]], [[2.0, 0.1], [0.2]], FinishReason.BOUNDARY),
        ([[0.1, 0.1], [1.5]], [[0.1, 0.1], []], FinishReason.BOUNDARY),
        ([[0.1, 0.1], [0.9]], [[0.1, 0.1], [0.9]], FinishReason.STOP),
        ([[0.1, 0.1, 1.2]], [[0.1, 0.1]], FinishReason.BOUNDARY),
    ],
    ids=["within a chunk", "between two chunks", "certain", "at the end of the answer"],
)
async def test_a_stream_ends_before_its_first_uncertain_token(
    chunks: list[list[float]], kept: list[list[float]], finish: FinishReason
) -> None:
    stream = Stream(*chunks, finish=FinishReason.STOP)
    found = [chunk async for chunk in cut_before_uncertain(stream.read(), RULE)]
    assert found == Stream(*kept, finish=finish).chunks
    assert stream.is_closed, "the request is cancelled"
