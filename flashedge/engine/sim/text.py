"""What a simulated model says: a codec of whole words, and a language model made of a trace.

The model is a proper distribution over next tokens. A step's length follows the trace: at every
token the chance that the step ends now is the share of the trace's samples that end here among
those that came this far. So a path can be cut and taken up anywhere, and the paths of one level
are as long as the samples of *one* problem and step were, not as independent draws from all.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import log
from pathlib import Path
from zlib import crc32

from flashedge.search.seeds import mix64
from flashedge.types import Message, Problem, TokenIds

EOS, BLANK_LINE, SEPARATOR, NEXT, THEREFORE = 0, 1, 2, 3, 4
SYSTEM, USER, ASSISTANT = 5, 6, 7
BOXED, NUM_ANSWERS = 16, 100  # one token for each \boxed{k}
WORDS, NUM_WORDS = 256, 1024  # w0 … w1023: what a step is made of
ROWS, NUM_ROWS = 2048, 4096  # #0, #1, …: names a row of the trace
HASHED, VOCAB = 8192, 32768  # any other word, by hash

_PIECE = re.compile(r"\n\n|\S+")
_ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
_SPECIALS = {EOS: "", BLANK_LINE: "\n\n", SEPARATOR: "", NEXT: "Next", THEREFORE: "Therefore"}
_SPECIALS |= dict.fromkeys((SYSTEM, USER, ASSISTANT), "")
_NUMBERED = re.compile(r"w(\d+)|#(\d+)|\\boxed\{(\d+)\}")


class SimCodec:
    """One token a word, one a blank line. `encode(decode(ids)) == ids` for generated ids.

    Implements engine.base.Codec.
    """

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def vocab_size(self) -> int:
        return VOCAB

    def encode(self, text: str) -> TokenIds:
        return tuple(_word_id(piece) for piece in _PIECE.findall(text))

    def encode_chat(self, messages: Sequence[Message]) -> TokenIds:
        turns = (t for m in messages for t in (_ROLES[m.role], *self.encode(m.content)))
        return (*turns, ASSISTANT)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(_word(token) for token in token_ids)


@lru_cache(maxsize=1 << 16)
def _word_id(piece: str) -> int:
    if piece == "\n\n":
        return BLANK_LINE
    if piece in ("Next", "Therefore"):
        return NEXT if piece == "Next" else THEREFORE
    if found := _NUMBERED.fullmatch(piece):
        for digits, (base, size) in zip(
            found.groups(),
            ((WORDS, NUM_WORDS), (ROWS, NUM_ROWS), (BOXED, NUM_ANSWERS)),
            strict=True,
        ):
            if digits is not None and int(digits) < size:
                return base + int(digits)
    return HASHED + crc32(piece.encode()) % (VOCAB - HASHED)


def _word(token: int) -> str:
    if token in _SPECIALS:
        return _SPECIALS[token]
    if BOXED <= token < BOXED + NUM_ANSWERS:
        return rf" \boxed{{{token - BOXED}}}"
    if WORDS <= token < WORDS + NUM_WORDS:
        return f" w{token - WORDS}"
    if ROWS <= token < ROWS + NUM_ROWS:
        return f" #{token - ROWS}"
    return f" x{token}"


# ---------------------------------------------------------------- the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One problem. step_tokens: one tuple a sample, each the tokens of its steps in order."""

    prompt_tokens: int
    step_tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Step lengths of real samples, some of each problem."""

    rows: tuple[TraceRow, ...]

    @classmethod
    def read(cls, path: Path) -> Trace:
        """JSON lines of prompt_tokens and step_tokens. Raises OSError, ValueError, KeyError."""
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return cls(
            tuple(
                TraceRow(
                    prompt_tokens=int(line["prompt_tokens"]),
                    step_tokens=tuple(tuple(map(int, sample)) for sample in line["step_tokens"]),
                )
                for line in lines
            )
        )

    def problem(self, row: int) -> Problem:
        """A problem whose paths follow `row`, with a prompt as long as that row's."""
        filler = max(self.rows[row].prompt_tokens - 3, 0)
        return Problem.from_text(" ".join([f"#{row}", *(f"word{i}" for i in range(filler))]))


# ---------------------------------------------------------------- the language model


def _hash(token_ids: Sequence[int]) -> blake2b:
    return blake2b(array("I", token_ids).tobytes(), digest_size=8)


def digest(token_ids: Sequence[int]) -> int:
    """64 bits of a token sequence."""
    return int.from_bytes(_hash(token_ids).digest(), "little")


@dataclass(frozen=True, slots=True)
class _Level:
    """Lengths of one step among the samples that reach it: of last steps, and of the others."""

    last: tuple[int, ...]
    inner: tuple[int, ...]


class SimModel:
    """Next tokens as a pure function of (seed, absolute position, all tokens before).

    Temperature 0 leaves the seed out; any other temperature, top-k and top-p change nothing.
    right: the share of paths that box the problem's right answer; common: the chance that a step
    is written in the words of greedy decoding, as small models often do (log-probabilities are
    told as if it were 0). Then siblings agree in a share of common² of all pairs.
    """

    def __init__(self, trace: Trace, *, right: float = 0.6, common: float = 0.0) -> None:
        if not trace.rows:
            raise ValueError("the trace is empty")
        self.right = right
        self.common = common
        self._trace = trace
        self._levels: dict[tuple[int, int], _Level] = {}

    def reader(self, token_ids: Sequence[int]) -> Reader:
        """A reader that stands after `token_ids` (prompt and path so far)."""
        return Reader(self, token_ids)

    def row(self, prompt: Sequence[int]) -> int:
        """The row that a prompt names (#3), or else one by the prompt's hash."""
        named = next((t - ROWS for t in prompt if ROWS <= t < ROWS + NUM_ROWS), None)
        return (digest(prompt) if named is None else named) % len(self._trace.rows)

    def level(self, row: int, step: int) -> _Level:
        """Lengths of `step`, never empty: beyond the longest sample a path concludes at once."""
        if (row, step) not in self._levels:
            reached = [s for s in self._trace.rows[row].step_tokens if len(s) > step]
            self._levels[row, step] = _Level(
                last=tuple(max(3, s[step]) for s in reached if len(s) == step + 1),
                inner=tuple(max(2, s[step]) for s in reached if len(s) > step + 1),
            )
            if not reached:
                self._levels[row, step] = _Level(last=(3,), inner=())
        return self._levels[row, step]


class Reader:
    """Reads a path token by token; knows its step, the length of it, and the hash of it all."""

    def __init__(self, model: SimModel, token_ids: Sequence[int]) -> None:
        ids = list(token_ids)
        start = max((i + 1 for i, t in enumerate(ids) if t == ASSISTANT), default=0)
        self._model = model
        self._row = model.row(ids[:start])
        self._answer = digest(ids[:start]) % NUM_ANSWERS
        ended = (i + 1 for i in range(len(ids) - 1, start - 1, -1) if ids[i] == BLANK_LINE)
        self._before = digest(ids[: next(ended, start)])  # of all before the step
        self._hash = _hash(ids)
        self._position = len(ids)
        self._step = self._length = 0
        self._first = self._token = EOS
        for token in ids[start:]:
            self._track(token)

    def read(self, token: int) -> None:
        """Append a token to the path."""
        self._hash.update(array("I", (token,)).tobytes())
        self._position += 1
        self._track(token)
        if token == BLANK_LINE:
            self._before = self._context()

    def draw(self, seed: int | None) -> tuple[int, float]:
        """The next token and its log-probability. seed None: greedy."""
        context = self._context()
        if seed is None or self._common(seed):
            noise = mix64(context)
        else:
            noise = mix64(mix64(seed, self._position), context)
        return self._choose((noise >> 10) / 2**53, mix64(noise))

    # ------------------------------------------------------------ inner

    def _context(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")

    def _common(self, seed: int) -> bool:
        """The same for all of a step."""
        common = self._model.common
        return common > 0 and (mix64(seed, self._before) >> 10) / 2**53 < common

    def _track(self, token: int) -> None:
        self._token = token
        if token == BLANK_LINE:
            self._step, self._length = self._step + 1, 0
            return
        if self._length == 0:
            self._first = token
        self._length += 1

    def _choose(self, u: float, more: int) -> tuple[int, float]:
        """One token by `u` in [0, 1); `more` picks among equally likely ones."""
        level = self._model.level(self._row, self._step)
        if self._length == 0:
            concludes = len(level.last) / (len(level.last) + len(level.inner))
            return _either(u, concludes, lambda: (THEREFORE, 0.0), lambda: (NEXT, 0.0))
        if BOXED <= self._token < BOXED + NUM_ANSWERS or self._token == EOS:
            return EOS, 0.0
        if self._first == THEREFORE or not level.inner:
            ends = _hazard(level.last or (3,), self._length + 2)
            return _either(u, ends, lambda: self._boxed(more), lambda: _any_word(more))
        ends = _hazard(level.inner, self._length + 1)
        return _either(u, ends, lambda: (BLANK_LINE, 0.0), lambda: _any_word(more))

    def _boxed(self, more: int) -> tuple[int, float]:
        other = (1 - self._model.right) / NUM_ANSWERS
        if (more >> 32) / 2**31 < self._model.right:
            return BOXED + self._answer, log(self._model.right + other)
        k = more % NUM_ANSWERS
        return BOXED + k, log(other + (self._model.right if k == self._answer else 0.0))


@lru_cache(maxsize=1 << 16)
def _hazard(lengths: tuple[int, ...], length: int) -> float:
    """The chance that a step ends at `length`, having come this far."""
    reached = sum(n >= length for n in lengths)
    return sum(n == length for n in lengths) / reached if reached else 1.0


def _any_word(more: int) -> tuple[int, float]:
    return WORDS + more % NUM_WORDS, -log(NUM_WORDS)


def _either(
    u: float, p: float, yes: Callable[[], tuple[int, float]], no: Callable[[], tuple[int, float]]
) -> tuple[int, float]:
    """`yes` with probability p, else `no`; the choice's log-probability is added."""
    taken = u < p
    token, logprob = yes() if taken else no()
    return token, logprob + log(p if taken else 1.0 - p)
