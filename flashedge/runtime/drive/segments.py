"""Builds a search's segments and probe answers from the tokens that an engine streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashedge.answers.extraction import extract_answer
from flashedge.engine.base import Chunk, Codec
from flashedge.runtime.incremental_text import IncrementalText
from flashedge.search.steps import split_steps
from flashedge.types import BLANK_LINE, TOKENS, Segment, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTexts:
    """Splits generated text into steps where the engine would have ended them."""

    codec: Codec
    rule: str = BLANK_LINE
    """One of `types.STEP_RULES`."""

    max_step_tokens: int
    """Tokens of a step by the rule `tokens`."""

    def split(self, token_ids: TokenIds, text: str, *, to_end: bool) -> tuple[str, ...]:
        """Split a segment's text. At least one step; joined they are the text.

        to_end: whether the segment went on past the ends of its steps.
        """
        if self.rule == BLANK_LINE:
            return split_steps(text)
        if not to_end:
            return (text,)
        decoder = IncrementalText(self.codec)
        pieces = [decoder.feed(ids) for ids in self._split_ids(token_ids)] + [decoder.flush()]
        steps: list[str] = []
        for piece in pieces:
            if steps and not (piece.strip() and steps[-1].strip()):
                steps[-1] += piece  # no step is blank
            else:
                steps.append(piece)
        return tuple(steps) if "".join(steps) == text else (text,)

    def _split_ids(self, ids: TokenIds) -> tuple[TokenIds, ...]:
        if self.rule == TOKENS:
            size = self.max_step_tokens
            return tuple(ids[at : at + size] for at in range(0, len(ids), size))
        return self.codec.rules[self.rule].split_ids(ids)


def build_segment(chunks: Sequence[Chunk], texts: StepTexts, *, to_end: bool) -> Segment:
    """Join the chunks of a finished stream, whose last chunk carries the finish reason.

    to_end: whether the segment went on past the ends of its steps.
    The text is decoded from all ids at once: incremental detokenizers can lose or split characters.
    """
    ids = tuple(i for chunk in chunks for i in chunk.token_ids)
    finish = chunks[-1].finish
    assert finish is not None, "the last chunk carries the finish reason"
    text = texts.codec.decode(ids)
    return Segment(
        token_ids=ids,
        logprobs=tuple(p for chunk in chunks for p in chunk.logprobs),
        text=text,
        steps=texts.split(ids, text, to_end=to_end),
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
