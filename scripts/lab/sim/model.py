"""The simulated language model: its vocabulary, the step lengths that it follows, its next tokens.

It is a proper distribution over next tokens. At every token, the chance that the step ends now is
the share of the trace's samples that end here, among those that are at least this long. So a path
can be cut anywhere and continued later, and the paths of one level are as long as the samples of
*one* problem and step were, not as independent draws from all problems.

A row may hold the real texts of its problem's samples. Then every step is that of a sample, with
its length. The seed ranks the samples, and a step is that of the first one which reaches this step
and begins with the tokens that are there. So a path of one seed is one sample, and a path whose
steps have seeds of their own is spliced of several at the ends of steps.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from math import log
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

from flashedge.engine.base import NO_VARIABLES
from flashedge.search.step_rules import BoundaryRule
from flashedge.search.tree import mix64
from flashedge.types import BLANK_LINE as BLANK_LINE_RULE
from flashedge.types import MARKERS, TOKENS, Message, Problem, TokenIds

EOS, BLANK_LINE, SEPARATOR, NEXT, THEREFORE = 0, 1, 2, 3, 4
SYSTEM, USER, ASSISTANT = 5, 6, 7
BOXED, NUM_ANSWERS = 16, 100  # one token for each \boxed{k}
WORDS, NUM_WORDS = 256, 1024  # w0 … w1023: what a step is made of
ROWS, NUM_ROWS = 2048, 4096  # #0, #1, …: names a row of the trace
TEXTS, NUM_TEXTS = 6144, 2048  # t0, t1, …: the tokens of real texts
HASHED, VOCAB = 8192, 32768  # any other word, by hash

_NEVER = BoundaryRule(holds=frozenset(), closes=frozenset(), opens=frozenset(), blank=frozenset())
RULES: Mapping[str, BoundaryRule] = MappingProxyType(
    {
        BLANK_LINE_RULE: replace(_NEVER, holds=frozenset({BLANK_LINE})),
        MARKERS: replace(_NEVER, holds=frozenset(range(WORDS, WORDS + 64))),
        TOKENS: _NEVER,
    }
)
"""A few of the words stand for the marker words. The rule entropy is missing: the probabilities of
these words say nothing about where a model is unsure."""

_PIECE = re.compile(r"\n\n|\S+")
_ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
_SPECIALS = {EOS: "", BLANK_LINE: "\n\n", SEPARATOR: "", NEXT: "Next", THEREFORE: "Therefore"}
_SPECIALS |= dict.fromkeys((SYSTEM, USER, ASSISTANT), "")
_BY_TEXT = {text: token for token, text in _SPECIALS.items() if text}
_NUMBERED = re.compile(r"w(\d+)|#(\d+)|t(\d+)|\\boxed\{(\d+)\}")
_RANGES = (
    (" w{}", WORDS, NUM_WORDS),
    (" #{}", ROWS, NUM_ROWS),
    (" t{}", TEXTS, NUM_TEXTS),
    (r" \boxed{{{}}}", BOXED, NUM_ANSWERS),
)
"""The text, the first token and the number of each kind of numbered words, as in `_NUMBERED`."""


class SimCodec:
    """`encode(decode(ids)) == ids` for generated ids."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCAB
    longest_token = 1 << 20  # a word of any length
    rules = RULES
    think_tags = None

    def encode(self, text: str) -> TokenIds:
        return tuple(_encode_word(piece) for piece in _PIECE.findall(text))

    def encode_chat(
        self, messages: Sequence[Message], variables: Mapping[str, Any] = NO_VARIABLES
    ) -> TokenIds:
        turns = (t for m in messages for t in (_ROLES[m.role], *self.encode(m.content)))
        return (*turns, ASSISTANT)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(_decode_token(token) for token in token_ids)


@lru_cache(maxsize=1 << 16)
def _encode_word(piece: str) -> int:
    if piece in _BY_TEXT:
        return _BY_TEXT[piece]
    if found := _NUMBERED.fullmatch(piece):
        for digits, (_, base, size) in zip(found.groups(), _RANGES, strict=True):
            if digits is not None and int(digits) < size:
                return base + int(digits)
    return HASHED + crc32(piece.encode()) % (VOCAB - HASHED)


def _decode_token(token: int) -> str:
    if token in _SPECIALS:
        return _SPECIALS[token]
    for text, base, size in _RANGES:
        if base <= token < base + size:
            return text.format(token - base)
    return f" x{token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """The samples of one problem."""

    prompt_tokens: int
    step_tokens: tuple[tuple[int, ...], ...]
    """One tuple for each sample: the tokens of its steps, in order."""
    right: float | None = None
    """The share of paths that box the problem's right answer. None: the model's."""
    problem: TokenIds = ()
    """A real problem's text. Empty: made-up words."""
    texts: tuple[tuple[TokenIds, ...], ...] = ()
    """The steps of the samples as `step_tokens` has them, each with the token that ends it. In the
    place of a sample's last two, the answer and EOS, stands BOXED. Empty: made-up words."""

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> TraceRow:
        steps = tuple(map(tuple, line["step_tokens"]))
        return cls(prompt_tokens=line["prompt_tokens"], step_tokens=steps)

    @classmethod
    def from_texts(cls, line: Mapping[str, Any]) -> TraceRow:
        """A row with real texts. line: the numbers of the tokens of `problem` and `samples`."""
        problem, *texts = (
            [tuple(TEXTS + number for number in step) for step in steps]
            for steps in ([line["problem"]], *line["samples"])
        )
        ended = tuple(
            (*((*step, BLANK_LINE) for step in inner), (*last, BOXED)) for *inner, last in texts
        )
        return cls(
            prompt_tokens=len(problem[0]) + 3,
            step_tokens=tuple(tuple(len(s) + (s[-1] == BOXED) for s in text) for text in ended),
            problem=problem[0],
            texts=ended,
        )


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Step lengths of several samples of each problem."""

    rows: tuple[TraceRow, ...]

    @classmethod
    def read(cls, path: Path) -> StepTrace:
        """Lines hold prompt_tokens and step_tokens. Raises OSError, ValueError, KeyError."""
        return cls(tuple(map(TraceRow.from_json, map(json.loads, path.read_text().splitlines()))))

    def problem(self, row: int) -> Problem:
        """A problem whose paths follow `row`, with a prompt as long as that row's."""
        found = self.rows[row]
        filler = "".join(f" word{i}" for i in range(found.prompt_tokens - 3))
        return Problem.from_text(f"#{row}{SimCodec().decode(found.problem) or filler}")


Lengths = tuple[int, ...]


class SimModel:
    """Draws next tokens as a pure function of (seed, absolute position, all tokens before).

    Temperature 0 leaves the seed out. Any other temperature, top-k and top-p change nothing.
    """

    def __init__(self, trace: StepTrace, *, right: float = 0.6, common: float = 0.0) -> None:
        """right: the share of paths that box the problem's right answer, where its row gives none.

        common: the chance that a step is written in the words of greedy decoding, as small models
        often do. Siblings then agree in a share of common² of all pairs. Log-probabilities are
        reported as if it were 0.
        """
        if not trace.rows:
            raise ValueError("the trace is empty")
        self.right = right
        self.common = common
        self.trace = trace
        self._lengths: dict[tuple[int, int], tuple[Lengths, Lengths]] = {}

    @property
    def writes_texts(self) -> bool:
        """Whether some paths are real texts, so that they repeat as real ones do."""
        return any(row.texts for row in self.trace.rows)

    def find_row(self, prompt: Sequence[int]) -> int:
        """The row that a prompt names (#3), or else one by the prompt's hash."""
        named = next((t - ROWS for t in prompt if ROWS <= t < ROWS + NUM_ROWS), None)
        return (digest(prompt) if named is None else named) % len(self.trace.rows)

    def step_lengths(self, row: int, step: int) -> tuple[Lengths, Lengths]:
        """Lengths of one step in the samples that end with it, and in those that go on after it.
        Never both empty: behind the longest sample a path concludes at once."""
        if (row, step) not in self._lengths:
            reached = [s for s in self.trace.rows[row].step_tokens if len(s) > step]
            last = tuple(max(3, s[step]) for s in reached if len(s) == step + 1)
            inner = tuple(max(2, s[step]) for s in reached if len(s) > step + 1)
            self._lengths[row, step] = (last if reached else (3,), inner)
        return self._lengths[row, step]


class Reader:
    """Reads a path token by token and draws what comes next.

    It keeps the number of the current step, its length so far, and a hash of the whole path.
    """

    def __init__(self, model: SimModel, token_ids: Sequence[int]) -> None:
        """token_ids: prompt and path so far."""
        ids = list(token_ids)
        start = max((i + 1 for i, t in enumerate(ids) if t == ASSISTANT), default=0)
        self._model = model
        self._row = model.find_row(ids[:start])
        self._answer = digest(ids[:start]) % NUM_ANSWERS
        ends = (i + 1 for i in range(len(ids) - 1, start - 1, -1) if ids[i] == BLANK_LINE)
        self._before = digest(ids[: next(ends, start)])  # of all before the step
        self._hash = _hash(ids)
        self._position = len(ids)
        self._step = self._length = 0
        self._first = self._token = EOS
        self._samples = self._list_samples()
        """The indices of the samples with texts that reach this step and agree with it so far."""
        for token in ids[start:]:
            self._track(token)

    def read(self, token: int) -> None:
        self._hash.update(array("I", (token,)).tobytes())
        self._position += 1
        self._track(token)
        if token == BLANK_LINE:
            self._before = self._digest_path()

    def draw(self, seed: int | None) -> tuple[int, float]:
        """The next token and its log-probability. seed None: greedy."""
        context = self._digest_path()
        if seed is None or self._is_common(seed):
            seed, noise = None, mix64(context)
        else:
            noise = mix64(mix64(seed, self._position), context)
        if self._model.trace.rows[self._row].texts:
            return self._follow_sample(seed, mix64(noise))
        return self._choose((noise >> 10) / 2**53, mix64(noise))

    def _follow_sample(self, seed: int | None, more: int) -> tuple[int, float]:
        if self._length and (self._token == EOS or BOXED <= self._token < BOXED + NUM_ANSWERS):
            return EOS, 0.0
        if not self._samples:  # behind a text that no sample has, a path concludes at once
            return self._box_answer(more)
        drawn = {i: self._read_sample(i) for i in self._samples}
        token = drawn[min(drawn, key=lambda i: mix64(seed or 0, i))]
        logprob = log(list(drawn.values()).count(token) / len(drawn))
        if token != BOXED:
            return token, logprob
        answer, more_logprob = self._box_answer(more)
        return answer, logprob + more_logprob

    def _digest_path(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")

    def _is_common(self, seed: int) -> bool:
        """Whether the step is written in common words. The same for all of its tokens."""
        common = self._model.common
        return common > 0 and (mix64(seed, self._before) >> 10) / 2**53 < common

    def _track(self, token: int) -> None:
        self._token = token
        if token == BLANK_LINE:
            self._step, self._length = self._step + 1, 0
            self._samples = self._list_samples()
            return
        if self._length == 0:
            self._first = token
        if self._samples:
            self._samples = [i for i in self._samples if self._read_sample(i) == token]
        self._length += 1

    def _list_samples(self) -> list[int]:
        texts = self._model.trace.rows[self._row].texts
        return [i for i, text in enumerate(texts) if len(text) > self._step]

    def _read_sample(self, index: int) -> int:
        """The sample's token at this place. Only an end of the answer comes after its last."""
        step = self._model.trace.rows[self._row].texts[index][self._step]
        return step[self._length] if self._length < len(step) else EOS

    def _choose(self, u: float, more: int) -> tuple[int, float]:
        """One token by `u` in [0, 1); `more` picks among equally likely ones."""
        last, inner = self._model.step_lengths(self._row, self._step)
        if self._length == 0:
            concludes = len(last) / (len(last) + len(inner))
            return _pick(u, concludes, (THEREFORE, 0.0), (NEXT, 0.0))
        if BOXED <= self._token < BOXED + NUM_ANSWERS or self._token == EOS:
            return EOS, 0.0
        word = WORDS + more % NUM_WORDS, -log(NUM_WORDS)
        if self._first == THEREFORE or not inner:
            ends = _compute_hazard(last or (3,), self._length + 2)
            return _pick(u, ends, self._box_answer(more), word)
        return _pick(u, _compute_hazard(inner, self._length + 1), (BLANK_LINE, 0.0), word)

    def _box_answer(self, more: int) -> tuple[int, float]:
        own = self._model.trace.rows[self._row].right
        right = self._model.right if own is None else own
        other = (1 - right) / NUM_ANSWERS
        if (more >> 32) / 2**31 < right:
            return BOXED + self._answer, log(right + other)
        k = more % NUM_ANSWERS
        return BOXED + k, log(other + (right if k == self._answer else 0.0))


def digest(token_ids: Sequence[int]) -> int:
    """64 bits that identify a token sequence."""
    return int.from_bytes(_hash(token_ids).digest(), "little")


def _hash(token_ids: Sequence[int]) -> blake2b:
    return blake2b(array("I", token_ids).tobytes(), digest_size=8)


@lru_cache(maxsize=1 << 16)
def _compute_hazard(lengths: Lengths, length: int) -> float:
    """The chance that a step ends at `length`, given that it is at least that long."""
    reached = sum(n >= length for n in lengths)
    return sum(n == length for n in lengths) / reached if reached else 1.0


Drawn = tuple[int, float]
"""A token and its log-probability."""


def _pick(u: float, p: float, yes: Drawn, no: Drawn) -> Drawn:
    """`yes` with probability p, else `no`. Adds the choice's log-probability."""
    token, logprob = yes if u < p else no
    return token, logprob + log(p if u < p else 1.0 - p)
