"""Profiles an engine by timing real requests to it. Implements `profiler.measure.ModelProbe`.

The times include everything a run pays for: the step itself, the request's way into the engine and
the token's way out. Prompts are random, so that they share no KV but that of a template.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from flashedge.engine.base import Chunk, ExtendRequest, Generator, ScoreRequest, Verifier
from flashedge.models.memory.engine_memory import MAX_STEP_TOKENS
from flashedge.models.shape import ModelShape
from flashedge.profiler.measure import DECODE, PREFILL
from flashedge.profiler.roofline import Sample
from flashedge.scheduling.costs import count_flops
from flashedge.types import Problem, Sampling

WORD_COUNTS = (8, 48)
"""Words of the two texts that show how many tokens a word takes. Chosen by hand: both fit any
context, and a token more or less changes little between them."""


class _EngineProbe:
    """What both probes share. The attributes are described at `ModelProbe`."""

    def __init__(
        self, name: str, shape: ModelShape, max_context: int, max_sequences: int, kv_bytes: int
    ) -> None:
        self.name = name
        self.max_context = max_context
        self.max_sequences = max_sequences
        self.max_step_tokens = MAX_STEP_TOKENS
        self.kv_tokens = kv_bytes // shape.kv_bytes_per_token
        self._shape = shape
        self._random = random.Random(0)

    def read_clock_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _make_sample(
        self, phase: str, sequences: int, context: float, new: float, seconds: float
    ) -> Sample:
        kv_bytes = self._shape.kv_bytes_per_token * (context + new)
        return Sample(
            phase=phase,
            sequences=sequences,
            context=context,
            new=new,
            seconds=seconds,
            flops=sequences * count_flops(self._shape, context, new),
            bytes=self._shape.weights_bytes + sequences * kv_bytes,
        )


class GeneratorProbe(_EngineProbe):
    """Times prefill by steps of one token, and decode by steps that run side by side."""

    decodes = True

    def __init__(
        self,
        generator: Generator,
        shape: ModelShape,
        *,
        max_sequences: int,
        kv_bytes: int,
        open_stream: Callable[[ExtendRequest], AsyncGenerator[Chunk]] | None = None,
    ) -> None:
        """open_stream: replaces `Generator.extend` and goes on past the end of an answer, since a
        model soon ends its answer to random tokens."""
        super().__init__("generator", shape, generator.max_model_len, max_sequences, kv_bytes)
        self._open = open_stream or generator.extend
        self._vocab_size = generator.codec.vocab_size

    async def prefill(self, sequences: int, tokens: int) -> Sample:
        began = self.read_clock_s()
        await asyncio.gather(*(self._time_tokens(tokens, 1) for _ in range(sequences)))
        return self._make_sample(PREFILL, sequences, 0, tokens, self.read_clock_s() - began)

    async def decode(self, sequences: int, context: int, steps: int) -> Sample | None:
        """Time the span in which all sequences decode: from the latest first token to the earliest
        last token. Returns None if no token falls into the span."""
        room = max(1, self.max_step_tokens - sequences)
        slack = 3 + sequences * context // room  # the steps until all decode, and 3 to spare
        count = steps + slack
        prompt = max(1, context - count // 2)  # so that the mean context is `context`
        arrivals = await asyncio.gather(
            *(self._time_tokens(prompt, count) for _ in range(sequences))
        )
        first_ended = min(arrivals, key=lambda times: times[-1])
        since, until = max(times[0] for times in arrivals), first_ended[-1]
        counted = sum(since < at <= until for at in first_ended)
        if counted == 0:
            return None
        return self._make_sample(DECODE, sequences, context, 1, (until - since) / counted)

    async def _time_tokens(self, context: int, count: int) -> list[float]:
        """Return the time at which each of `count` tokens arrived."""
        times: list[float] = []
        async with aclosing(self._open(self._make_request(context, count))) as stream:
            async for chunk in stream:
                times += [self.read_clock_s()] * len(chunk.token_ids)
        return times

    def _make_request(self, tokens: int, max_tokens: int) -> ExtendRequest:
        return ExtendRequest(
            token_ids=tuple(self._random.choices(range(self._vocab_size), k=tokens)),
            seed=self._random.getrandbits(32),
            sampling=Sampling(temperature=1.0),
            max_tokens=max_tokens,
            to_boundary=False,
            each_token=True,
        )


class VerifierProbe(_EngineProbe):
    """Times the scoring of paths that have one step and a problem of the requested length."""

    decodes = False

    def __init__(
        self, verifier: Verifier, shape: ModelShape, *, max_sequences: int, kv_bytes: int
    ) -> None:
        super().__init__("verifier", shape, verifier.max_model_len, max_sequences, kv_bytes)
        self._verifier = verifier
        self._line: tuple[float, float] | None = None
        """(start, each): a path has start + each * words tokens. None before the first prompt."""

    async def prefill(self, sequences: int, tokens: int) -> Sample:
        words = await self._fit_words(tokens)
        requests = [self._make_request(words) for _ in range(sequences)]
        began = self.read_clock_s()
        scored = await asyncio.gather(*(self._verifier.score(request) for request in requests))
        seconds = self.read_clock_s() - began
        context = sum(each.cached_tokens for each in scored) / sequences
        new = sum(each.tokens for each in scored) / sequences - context
        return self._make_sample(PREFILL, sequences, context, new, seconds)

    async def decode(self, sequences: int, context: int, steps: int) -> Sample | None:
        raise NotImplementedError("a verifier does not decode; check `decodes`")

    async def _fit_words(self, tokens: int) -> int:
        """How many words a problem needs for its path to have about `tokens` tokens."""
        if self._line is None:
            few, many = [
                (await self._verifier.score(self._make_request(words))).tokens
                for words in WORD_COUNTS
            ]
            each = (many - few) / (WORD_COUNTS[1] - WORD_COUNTS[0])
            self._line = (few - each * WORD_COUNTS[0], each)
        start, each = self._line
        return max(1, round((tokens - start) / each))

    def _make_request(self, words: int) -> ScoreRequest:
        name = self._random.randint(10**5, 10**6 - 1)  # so that no text repeats
        text = " ".join([str(name), *(str(self._random.randint(10, 99)) for _ in range(words))])
        return ScoreRequest(problem=Problem.from_text(text), steps=("So it is 5.",))
