"""Builds a run's requests to its generator, and turns their streams into segments and answers."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from flashedge.answers.extraction import extract_answer
from flashedge.certainty.token_confidence import falls_below
from flashedge.engine.base import Chunk, Codec, ExtendRequest, Generator
from flashedge.runtime.drive.engines import Engines
from flashedge.runtime.request.validation import Request
from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.search.base import Probe
from flashedge.search.step_rules import split_steps
from flashedge.types import (
    BLANK_LINE,
    TOKENS,
    ConfidenceRule,
    FinishReason,
    Granularity,
    Segment,
    TokenIds,
)

_PARTIAL_IDS = 3
"""Most ids of an incomplete character, which has four bytes at most."""
_MAX_HELD_IDS = 64
"""Most ids that wait for the rest of a character. If more wait, some bytes are no text, and only
the last ones, up to `_PARTIAL_IDS`, go on waiting. Chosen by hand, far above what a character
needs, and low enough that decoding all that wait with each new id is cheap."""


class IncrementalText:
    """Turns streamed ids into text, in whole characters where the bytes are text. Decodes a short
    window with and without the new ids, since the text of an id may depend on its neighbours."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._start = 0  # of the window
        self._num_emitted = 0  # ids whose text was returned

    def feed(self, token_ids: TokenIds) -> str:
        """Add ids, and return the text that is complete now."""
        self._ids += token_ids
        return self._emit(self._count_whole())

    def flush(self) -> str:
        """Return what `feed` held back, such as an incomplete character at the very end."""
        return self._emit(len(self._ids))

    def look(self) -> str:
        """Return what `flush` would, and keep it."""
        return self._decode(len(self._ids))[len(self._decode(self._num_emitted)) :]

    def _count_whole(self) -> int:
        """Count the ids whose text may be returned."""
        last = len(self._ids)
        if self._is_whole(last):
            return last
        if last - self._num_emitted <= _MAX_HELD_IDS:
            return self._num_emitted
        ends = range(last - 1, last - _PARTIAL_IDS - 1, -1)
        return next((end for end in ends if self._is_whole(end)), ends[-1])

    def _is_whole(self, end: int) -> bool:
        return not self._decode(end).endswith("\N{REPLACEMENT CHARACTER}")

    def _emit(self, end: int) -> str:
        text = self._decode(end)[len(self._decode(self._num_emitted)) :]
        if end > self._num_emitted:
            self._start, self._num_emitted = self._num_emitted, end
        return text

    def _decode(self, end: int) -> str:
        return self._codec.decode(self._ids[self._start : end])


def build_path_request(
    asked: Request,
    path: TokenIds,
    seed: int,
    granularity: Granularity,
    *,
    prompt_tokens: int,
    engines: Engines,
    may_draft: bool = True,
    continuation: Continuation | None = None,
) -> ExtendRequest:
    """Build the request for one child. path: the prompt and the path to the parent. may_draft:
    whether its tokens may be drafted."""
    return ExtendRequest(
        token_ids=path,
        seed=seed,
        sampling=asked.sampling,
        max_tokens=granularity.max_tokens,
        to_boundary=not granularity.to_end,
        step_rule=asked.step_rule,
        entropy_rule=None if granularity.to_end else asked.entropy_rule,
        confidences=granularity.confidence_rule is not None,
        guidance=asked.guidance,
        answer_start=prompt_tokens,
        program=engines.program,
        client=engines.client,
        continuation=continuation,
        deterministic=asked.deterministic,
        each_token=not engines.optimizations.joined_tokens,
        token_drafts=engines.optimizations.token_drafts and may_draft,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplitter:
    """Splits generated text into steps where the engine would have ended them."""

    codec: Codec
    rule: str = BLANK_LINE
    """One of `types.STEP_RULES`."""
    max_step_tokens: int
    """Length of a step by the rule `tokens`."""

    def split(self, token_ids: TokenIds, text: str, *, to_end: bool) -> tuple[str, ...]:
        """Split a segment's text into at least one step. All steps joined are the text.
        to_end: whether the segment was generated past the ends of its steps."""
        if self.rule == BLANK_LINE:
            return split_steps(text)
        if not to_end:
            return (text,)
        decoder = IncrementalText(self.codec)
        pieces = [decoder.feed(ids) for ids in self._split_ids(token_ids)] + [decoder.flush()]
        steps: list[list[str]] = []
        has_text = False
        for piece in pieces:
            is_blank = not piece.strip()
            if not steps or (has_text and not is_blank):  # blank pieces begin no step of their own
                steps.append([])
                has_text = False
            steps[-1].append(piece)
            has_text = has_text or not is_blank
        joined = tuple("".join(step) for step in steps)
        return joined if "".join(joined) == text else (text,)

    def _split_ids(self, ids: TokenIds) -> tuple[TokenIds, ...]:
        if self.rule == TOKENS:
            size = self.max_step_tokens
            return tuple(ids[at : at + size] for at in range(0, len(ids), size))
        return self.codec.rules[self.rule].split_ids(ids)


class ConfidenceStop:
    """Cuts the stream of one path where its rule ends it. The cut does not depend on how the stream
    is divided into chunks, nor on whether the path ends there by itself."""

    def __init__(self, rule: ConfidenceRule) -> None:
        self._rule = rule
        self._sums = [0.0]

    def cut(self, chunk: Chunk) -> Chunk:
        """Returns the chunk, or its first tokens with the finish UNSURE."""
        for count, confidence in enumerate(chunk.confidences, 1):
            if not confidence:
                continue
            self._sums.append(self._sums[-1] + confidence)
            if falls_below(self._sums, self._rule):
                return chunk.cut(count, FinishReason.UNSURE)
        return chunk


def build_segment(chunks: Sequence[Chunk], splitter: StepSplitter, *, to_end: bool) -> Segment:
    """Join the chunks of a finished stream. The text is decoded from all ids at once, since
    incremental detokenizers can lose or split characters. to_end: as for `StepSplitter.split`."""
    ids = tuple(i for chunk in chunks for i in chunk.token_ids)
    finish = chunks[-1].finish
    assert finish is not None, "the last chunk carries the finish reason"
    text = splitter.codec.decode(ids)
    return Segment(
        token_ids=ids,
        logprobs=tuple(p for chunk in chunks for p in chunk.logprobs),
        text=text,
        steps=splitter.split(ids, text, to_end=to_end),
        finish=finish,
        confidences=tuple(c for chunk in chunks for c in chunk.confidences),
    )


def build_probe_request(
    probe: Probe, path: TokenIds, asked: Request, generator: Generator, program: str | None
) -> ExtendRequest | None:
    """Build the request that continues a path with the probe's suffix. None if no token fits.
    path: the prompt's ids and the path's."""
    ids = (*path, *generator.codec.encode(probe.suffix))
    room = generator.max_model_len - len(ids)
    if room <= 0:
        return None
    return ExtendRequest(
        token_ids=ids,
        seed=probe.seed,
        sampling=asked.sampling,
        max_tokens=min(probe.max_tokens, room),
        to_boundary=False,
        program=program,
        deterministic=asked.deterministic,
        each_token=True,
    )


async def run_probe(
    request: ExtendRequest, probe: Probe, generator: Generator
) -> tuple[TokenIds, str]:
    """Return a probe's tokens and their text, up to `tail_tokens` behind the token that completes a
    boxed answer after its suffix, however the stream is cut into chunks."""
    decoder, text = IncrementalText(generator.codec), [probe.suffix]
    ids: list[int] = []
    last: int | None = None
    async with aclosing(generator.extend(request)) as stream:
        async for chunk in stream:
            for token in chunk.token_ids:
                ids.append(token)
                if last is None:
                    text.append(decoder.feed((token,)))
                    rest = decoder.look()
                    # Only a closing brace can complete an answer, so all text is read only then.
                    if "}" in text[-1] + rest and extract_answer("".join(text) + rest) is not None:
                        last = len(ids) + probe.tail_tokens
                if last is not None and len(ids) >= last:
                    return tuple(ids), generator.codec.decode(ids)
    return tuple(ids), generator.codec.decode(ids)
