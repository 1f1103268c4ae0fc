"""Builds a search's segments and probe answers from the tokens that an engine streams."""

from __future__ import annotations

from collections.abc import Sequence

from flashedge.answers.extraction import extract_answer
from flashedge.engine.base import Chunk, Codec
from flashedge.search.steps import split_steps
from flashedge.types import Segment, TokenIds


def build_segment(chunks: Sequence[Chunk], codec: Codec) -> Segment:
    """Join the chunks of a finished stream, whose last chunk carries the finish reason.

    The text is decoded from all ids at once: incremental detokenizers can lose or split characters.
    """
    ids = tuple(i for chunk in chunks for i in chunk.token_ids)
    finish = chunks[-1].finish
    assert finish is not None, "the last chunk carries the finish reason"
    text = codec.decode(ids)
    return Segment(
        token_ids=ids,
        logprobs=tuple(p for chunk in chunks for p in chunk.logprobs),
        text=text,
        steps=split_steps(text),
        finish=finish,
    )


def find_probe_answer(token_ids: TokenIds, suffix: str, codec: Codec) -> tuple[TokenIds, str, bool]:
    """Find the shortest prefix that, after `suffix`, holds a complete boxed answer.

    Returns its tokens, its text and True, or all tokens, their text and False where there is none.
    The result depends on the tokens alone, however the stream was cut into chunks.
    """
    for size in range(1, len(token_ids) + 1):
        text = codec.decode(token_ids[:size])
        if extract_answer(suffix + text) is not None:
            return token_ids[:size], text, True
    return token_ids, codec.decode(token_ids), False
