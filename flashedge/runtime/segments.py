"""From an engine's stream of tokens to a search's segment."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.engine.base import Chunk, Codec
from flashedge.search.steps import split_steps
from flashedge.types import Segment


def segment_of(chunks: Sequence[Chunk], codec: Codec) -> Segment:
    """Join a finished stream of chunks; its last one carries the reason of the end.

    The text is decoded from all ids as one piece: incremental detokenizers can leak or split.
    """
    ids = tuple(i for chunk in chunks for i in chunk.token_ids)
    finish = chunks[-1].finish
    assert finish is not None, "the last chunk carries the reason"
    text = codec.decode(ids)
    return Segment(
        token_ids=ids,
        logprobs=tuple(p for chunk in chunks for p in chunk.logprobs),
        text=text,
        steps=split_steps(text),
        finish=finish,
    )
