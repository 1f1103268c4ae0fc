"""From an engine's stream of tokens to a search's segment."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.answers.extraction import extract_answer
from flashedge.engine.base import Chunk, Codec
from flashedge.search.steps import split_steps
from flashedge.types import Segment, TokenIds


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


def probe_answer(said: TokenIds, suffix: str, codec: Codec) -> tuple[TokenIds, str, bool]:
    """The shortest beginning of `said` that, behind `suffix`, holds a whole boxed answer: its
    tokens, its text, True; all of it and False where none does.

    A function of the tokens alone, however the stream was cut into chunks.
    """
    for size in range(1, len(said) + 1):
        text = codec.decode(said[:size])
        if extract_answer(suffix + text) is not None:
            return said[:size], text, True
    return said, codec.decode(said), False
