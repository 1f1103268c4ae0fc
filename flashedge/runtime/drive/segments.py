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
        steps: list[list[str]] = []
        has_text = False
        for piece in pieces:
            if steps and not (piece.strip() and has_text):
                steps[-1].append(piece)  # no step is blank
                has_text = has_text or not piece.isspace()
            else:
                steps.append([piece])
                has_text = bool(piece.strip())
        joined = tuple("".join(step) for step in steps)
        return joined if "".join(joined) == text else (text,)

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


class ProbeAnswer:
    """Finds the shortest prefix of a probe's tokens that, after `suffix`, holds a complete boxed
    answer. The result depends on the tokens alone, however the stream was cut into chunks.

    A token without a closing brace completes nothing, so each costs one short decode. The text is
    read again for one with a brace; a probe has at most 4,096 tokens.
    """

    def __init__(self, suffix: str, codec: Codec) -> None:
        self._codec = codec
        self._decoder = IncrementalText(codec)
        self._text = [suffix]
        self._ids: list[int] = []

    def feed(self, token_ids: TokenIds) -> bool:
        """Take a chunk up to the token that completes the answer. Returns whether it does."""
        for token in token_ids:
            self._ids.append(token)
            piece = self._decoder.feed((token,))
            self._text.append(piece)
            rest = self._decoder.look()
            if "}" in piece + rest and extract_answer("".join(self._text) + rest) is not None:
                return True
        return False

    def read(self) -> tuple[TokenIds, str]:
        """The tokens taken so far, and their text."""
        return tuple(self._ids), self._codec.decode(self._ids)
