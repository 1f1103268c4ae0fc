"""The stock twin of the rule entropy: it cuts the stream of a request that runs on."""

from collections.abc import AsyncGenerator

import pytest

from flashedge.engine.base import Chunk
from flashedge.engine.vllm.stock import cut_before_uncertain
from flashedge.search.step_rules import EntropyRule
from flashedge.types import FinishReason

RULE = EntropyRule(threshold=1.0, min_tokens=2)


def make_chunks(parts: list[list[float]], finish: FinishReason) -> list[Chunk]:
    """Of a request whose tokens are drawn with these entropies, a few at a time."""
    found = []
    for at, part in enumerate(parts):
        tokens = {"token_ids": (7,) * len(part), "logprobs": (-0.5,) * len(part)}
        end = finish if at + 1 == len(parts) else None
        cached = 16 if at == 0 else 0
        found.append(Chunk(**tokens, entropies=tuple(part), finish=end, cached_tokens=cached))
    return found


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
    closed = []

    async def stream() -> AsyncGenerator[Chunk]:
        try:
            for chunk in make_chunks(chunks, FinishReason.STOP):
                yield chunk
        finally:
            closed.append(True)

    found = [chunk async for chunk in cut_before_uncertain(stream(), RULE)]
    assert found == make_chunks(kept, finish)
    assert closed, "the request is cancelled"
