"""What the runtime needs of an engine: a Generator, a Verifier and the text codec between them.

Exceptions out of any method here: RequestError (the request itself is wrong, e.g.
ContextOverflow), GenerationFailed (this request failed, the engine lives) and EngineDead (the
process is gone; `wait_ready` returns once it is back). Nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from flashedge.scheduling.speculation.slots import FollowUp
from flashedge.types import FinishReason, Message, Problem, Sampling, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRequest:
    """Continue `token_ids` (chat prompt + path so far).

    The noise of the token at absolute position p is a pure function of (seed, p), so the same
    request yields the same tokens whenever and beside whatever it runs. `to_boundary`: stop
    after the first token that completes a blank line (FinishReason.BOUNDARY); max_tokens
    reached is STEP_LIMIT. `priority`: lower runs first among the waiting. `follow_up`: what comes
    next if this step is kept, for a generator that speculates; it changes no token.
    """

    token_ids: TokenIds
    seed: int
    sampling: Sampling
    max_tokens: int
    to_boundary: bool
    priority: int = 0
    follow_up: FollowUp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some new tokens. `finish` is set on the last chunk only (which may hold no token).

    cached_tokens: on the first chunk, prompt tokens whose KV was re-used; speculated_tokens: those
    of the chunk's tokens that were drawn before anybody asked for them.
    """

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    finish: FinishReason | None = None
    cached_tokens: int = 0
    speculated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeDraft:
    """A step that was drawn to its end before anybody asked for it. seed: of its noise."""

    seed: int
    token_ids: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Score `steps[num_scored:]`; the earlier ones were scored before on this path."""

    problem: Problem
    steps: tuple[str, ...]
    num_scored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """scores: (len(steps) - num_scored,) in [0, 1]. tokens: of the whole verifier prompt;
    cached_tokens: those whose KV was re-used."""

    scores: tuple[float, ...]
    tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """A look at an engine between two of its steps. Blocks are KV blocks of `block_tokens`.

    blocks_used counts blocks that live requests hold; blocks kept only as prefix cache are free.
    quota_blocks: what the current budget allows (<= blocks_total).
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    quota_blocks: int
    block_tokens: int
    block_bytes: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """state: starting, ready, dead (restart under way) or failed (given up). pid of the engine
    process if there is one; restarts since the start; detail: the last error, if any.

    kv_memory: what becomes of memory beyond the budget: "os" (it goes back to the operating
    system), "device" (to the card) or "kept" (it stays allocated, only the quota moves); None: not
    known yet.
    """

    state: str
    pid: int | None = None
    restarts: int = 0
    detail: str | None = None
    kv_memory: str | None = None


class Codec(Protocol):
    """Text <-> token ids of the generator. Pure, cheap, safe to call anywhere."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode_chat(self, messages: Sequence[Message]) -> TokenIds:
        """Ids of the conversation with the assistant's turn opened."""
        ...

    def encode(self, text: str) -> TokenIds:
        """Ids of a piece of text, no special tokens around it."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated ids, special tokens left out, decoded as one piece."""
        ...


class Speculator(Protocol):
    """A generator's work beyond the steps that were asked for. A request whose path, seed and
    sampling were drawn ahead begins with those tokens by itself. Nothing here raises: of an engine
    that is dead nothing is left. flat_batch: see `speculation.BatchView`; may be set at any time.
    """

    flat_batch: int

    async def whole_drafts(self, run: str) -> tuple[WholeDraft, ...]:
        """Following steps of a run that are drawn to their end and not asked for."""
        ...

    async def keep(self, run: str, level: int, seeds: Collection[int]) -> None:
        """Level `level` of the run begins with these seeds: drop what else was drawn."""
        ...

    async def end(self, run: str) -> int:
        """The run is over: drop all of it. Returns the tokens drawn ahead for it in all."""
        ...


class Generator(Protocol):
    @property
    def speculator(self) -> Speculator | None:
        """None: it ends where a step ends, and `follow_up` is ignored."""
        ...

    @property
    def codec(self) -> Codec: ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and path together."""
        ...

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        """Stream tokens. Closing the generator (or cancelling its task) cancels the request and
        frees its KV blocks at once."""
        ...

    async def view(self) -> EngineView: ...

    async def budget(self, kv_bytes: int) -> int:
        """Bound the KV that requests may hold; returns the bytes granted (whole blocks)."""
        ...

    async def offload(self, *, keep: bool = True) -> int:
        """Stop, save the KV in host memory and give its memory back; requests that come wait.
        keep: False drops the KV instead, to be computed again. Returns the bytes saved."""
        ...

    async def restore(self) -> int:
        """The inverse of `offload`: the KV comes back, requests go on with the same tokens.
        Returns the bytes loaded. Does nothing to an engine that was not offloaded."""
        ...

    def health(self) -> Health: ...

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once the engine serves. Raises EngineDead on time-out or when it was given up."""
        ...


class Verifier(Protocol):
    @property
    def max_model_len(self) -> int: ...

    async def score(self, request: ScoreRequest) -> StepScores:
        """Scores of the steps not scored before. Cancelling the task cancels the request."""
        ...

    async def view(self) -> EngineView: ...

    async def budget(self, kv_bytes: int) -> int: ...

    async def offload(self, *, keep: bool = True) -> int: ...

    async def restore(self) -> int: ...

    def health(self) -> Health: ...

    async def wait_ready(self, timeout_s: float) -> None: ...
