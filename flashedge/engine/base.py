"""The interfaces of the two engines, Generator and Verifier, and of the generator's text codec.

Methods of an engine raise only RequestError (the request is wrong, for example ContextOverflow),
GenerationFailed (the call failed, the engine lives) and EngineDead (the process is gone;
`wait_ready` returns once it is back).
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, Protocol, Self, TypeVar

from flashedge.scheduling.speculation.drafts import Continuation
from flashedge.search.step_rules import BoundaryRule, EntropyRule
from flashedge.types import (
    BLANK_LINE,
    FinishReason,
    Message,
    Problem,
    Sampling,
    ThinkTags,
    TokenIds,
)

NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRequest:
    """Generate the step after `token_ids`.

    The noise of the token at absolute position p is a pure function of (seed, p). So the same
    request yields the same tokens, but under load only with batch-invariant kernels or if it is
    `deterministic`.
    """

    token_ids: TokenIds
    """The chat prompt and the path so far."""
    seed: int
    sampling: Sampling
    max_tokens: int
    """Most tokens of the step. It ends there with STEP_LIMIT, or LENGTH if the context is full."""
    to_boundary: bool
    """Whether the first token that ends a step by `step_rule` ends the request (BOUNDARY)."""
    step_rule: str = BLANK_LINE
    """A key of `Codec.rules`."""
    entropy_rule: EntropyRule | None = None
    """Ends the request before the first token that is too uncertain (BOUNDARY), even if
    `to_boundary` is False. A generator without entropies raises RequestError."""
    confidences: bool = False
    """Whether to report how sure the model is of each token. Not together with `entropy_rule`."""
    guidance: Mapping[str, Any] | None = None
    """What the answer must match: one of vLLM's `json`, `json_object`, `regex`, `choice`, `grammar`
    and `structural_tag`, with its options. A generator without grammars raises RequestError."""
    answer_start: int = 0
    """Where the answer begins in `token_ids`. Guidance covers all tokens from there on,
    after any thinking."""
    program: str | None = None
    """The key of the request's program. See `Engine.rank_programs`."""
    client: str = ""
    """Who asks. Empty if that is not known."""
    continuation: Continuation | None = None
    """What comes next if this step is kept, for a generator that drafts. It changes no token."""
    deterministic: bool = False
    """Whether the tokens must not depend on what else the engine computes, even where its kernels
    do: each token is verified before it is streamed. What can't be verified raises RequestError."""
    each_token: bool = False
    """Whether each token is sent as soon as it is drawn. Otherwise a generator may send tokens
    together every 50 ms. The end of a step is sent at once."""
    token_drafts: bool = False
    """Whether the generator may draft tokens, from the texts of the program and of its client. It
    changes no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The next tokens of a stream."""

    token_ids: TokenIds
    logprobs: tuple[float, ...]
    """(len(token_ids),) natural log under the model's distribution at temperature 1."""
    finish: FinishReason | None = None
    """Set on the last chunk alone, which may hold no token."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused. Read it from the first chunk."""
    speculated_tokens: int = 0
    """How many of `token_ids` come from an adopted draft."""
    entropies: tuple[float, ...] = ()
    """(len(token_ids),) nats, of the model's own distribution for each token (`EntropyRule`). Empty
    unless the request has an `entropy_rule`."""
    confidences: tuple[float, ...] = ()
    """(len(token_ids),) see `certainty.token_confidence`. Empty unless the request asks for it."""

    def cut(self, count: int, finish: FinishReason) -> Self:
        """The first `count` tokens, with what is known of each, as the last chunk of a stream."""
        each = ("token_ids", "logprobs", "entropies", "confidences")
        return replace(self, **{name: getattr(self, name)[:count] for name in each}, finish=finish)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Score `steps[num_scored:]`. A verifier of whole answers scores all steps as one."""

    problem: Problem
    steps: tuple[str, ...]
    num_scored: int = 0
    program: str | None = None
    deterministic: bool = False
    """Whether the scores must not depend on the load or on cached KV, even where kernels do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    scores: tuple[float, ...]
    """(len(steps) - num_scored,) in [0, 1], from a verifier of whole answers (1,)."""
    tokens: int
    """Tokens of the whole verifier prompt."""
    cached_tokens: int
    """Tokens of the prompt with cached KV. All of them if the verifier had cached every score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """An engine's load between two of its steps."""

    running: int
    waiting: int
    blocks_used: int
    """KV blocks that live requests hold. Blocks kept only as prefix cache count as free."""
    blocks_total: int
    quota_blocks: int
    """KV blocks that the current budget allows, at most `blocks_total`."""
    block_tokens: int
    block_bytes: int
    preemptions: int
    """Preemptions of requests since the process started."""
    prompt_tokens: int = 0
    """Prompt tokens of all requests since the engine was loaded, across restarts."""
    cached_tokens: int = 0
    """How many of `prompt_tokens` had their KV in the prefix cache."""
    replays: Mapping[str, int] = field(default_factory=dict)
    """Counts steps, and passes of deterministic requests, since the process started: see
    `passes.COUNTERS`."""
    kv_moved: Mapping[str, int] = field(default_factory=dict)
    """Counts bytes of KV that moved since the process started: see `inside.kv.quota.MOVED`."""
    token_drafts: Mapping[str, int] = field(default_factory=dict)
    """Counts drafted tokens since the process started: see `inside.step_times`, `token_drafts`."""

    @property
    def cache_hits(self) -> float | None:
        """The share of prompt tokens found in the prefix cache. None before the first prompt."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of an engine's process."""

    state: str
    """starting, ready, dead (it is being restarted), failed (its first start failed), stopped, or
    `types.UNUSED`"""
    pid: int | None = None
    restarts: int = 0
    detail: str | None = None
    """Why the process last ended or failed to start. None if it never did."""
    attempt: int = 0
    """Number of the restart that is under way or comes next. 0 while the engine serves."""
    retry_in_s: float | None = None
    """Seconds until that restart begins. None while it is under way, or if there is none."""
    notice: str | None = None
    """Tells users that the engine's batch is smaller than configured. None if it is not."""
    stage: str | None = None
    """What a starting process is doing, in a few words. None once it serves."""
    kv_memory: str | None = None
    """Where KV memory beyond the budget goes: "os" (back to the operating system), "device" (back
    to the card), "kept" (it stays allocated and only the quota moves), or "own" (the other engine
    runs on other cards, so nothing moves). None before the first start, unless it is "own"."""
    kv_fixed: str | None = None
    """Why the engine keeps its KV memory, in words. None where memory moves between the engines."""
    cards: str | None = None
    """The cards that the engine runs on, such as "GPU 0 + GPU 1". None on a CPU."""

    def explain(self) -> str | None:
        """Say what is wrong with the engine and when it restarts. None if nothing is wrong."""
        if self.state == "ready":
            return self.notice
        if not self.attempt:
            return self.detail
        when = "is under way" if self.retry_in_s is None else f"in {self.retry_in_s:.0f} s"
        return f"{self.detail}; restart {self.attempt} {when}"


class Codec(Protocol):
    """Converts between text and the generator's token ids. Pure, and safe in any thread."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def longest_token(self) -> int:
        """An upper bound on the characters that one token stands for."""

    @property
    def rules(self) -> Mapping[str, BoundaryRule]:
        """Where a step may end, by names of `types.STEP_RULES`."""

    @property
    def think_tags(self) -> ThinkTags | None:
        """What the model writes around its thinking, before its answer. None if it does not."""

    def encode_chat(
        self, messages: Sequence[Message], variables: Mapping[str, Any] = NO_VARIABLES
    ) -> TokenIds:
        """Encode the conversation and open the assistant's turn. Raises RequestError.

        variables: for the chat template. They override `chat_template_kwargs` of the model."""

    def encode(self, text: str) -> TokenIds:
        """Encode a text without special tokens around it."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode as one piece without special tokens."""


class Speculator(Protocol):
    """The drafts of a generator (`scheduling/speculation/drafts.py`).

    A request with a draft's path, seed and sampling adopts it by itself. No method raises
    EngineDead: a dead engine has no drafts.
    """

    async def list_complete(self, run: str) -> Mapping[int, TokenIds]:
        """The run's drafts that have reached the end of their step, by their seeds."""

    async def drop_unused(self, run: str, levels: Collection[int], seeds: Collection[int]) -> None:
        """Drop the drafts that follow these levels of the run, except those with one of `seeds`.
        The next call drops the excepted ones too, unless a request has adopted them."""

    async def commit(self, run: str, level: int, children: Mapping[int, int]) -> None:
        """Draft these children like requested steps: the run will certainly request them. children:
        how many first children of a node of the level, by the seed of its child 0."""

    async def end_run(self, run: str) -> tuple[int, int]:
        """Drop the drafts of a run that is over. Returns how many tokens were drafted for it, and
        how many of them for children that were certain."""


class Engine(Protocol):
    """What generator and verifier share: their life, their load and their memory."""

    @property
    def suspect_lock(self) -> asyncio.Lock:
        """Held while a request suspected of crashing the engine is retried alone."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and path together."""

    async def view(self) -> EngineView: ...

    async def budget(self, kv_bytes: int) -> int:
        """Limit the KV that requests may hold. Returns the bytes granted, in whole blocks: at least
        those of one request of full length, and fewer than asked if memory is short."""

    async def offload(self, *, keep: bool = True, share: float = 1.0) -> int:
        """Pause, save the KV in host memory, and free its memory; new requests wait.

        Returns the bytes saved, 0 if that failed. keep: False drops the KV instead. What is not
        saved is computed again. share: a first part of the KV; calls with larger ones follow."""

    async def restore(self, *, share: float = 1.0) -> int:
        """Load any offloaded KV and go on with the same tokens. Returns the bytes loaded. share: a
        first part of the KV, if there is memory for it; the engine waits for the whole."""

    async def rank_programs(self, keys: Sequence[str]) -> None:
        """Run waiting requests in this order of their programs from now on.

        Requests of one program go by arrival, and those of a program not in `keys` go last. Running
        requests go on. A dead engine gets the order when it serves again."""

    def health(self) -> Health: ...

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once the engine serves. Raises EngineDead on time-out, or if it has failed."""


class Generator(Engine, Protocol):
    @property
    def speculator(self) -> Speculator | None:
        """None if the generator does not draft: it ignores `continuation`."""

    @property
    def most_drafted(self) -> int:
        """A level of more requests is not offered for drafting, as that would not pay."""

    @property
    def codec(self) -> Codec: ...

    def extend(self, request: ExtendRequest) -> AsyncGenerator[Chunk]:
        """Stream the step's tokens. Closing the stream (or cancelling its task) cancels the
        request, whose KV blocks are then free."""


class Verifier(Engine, Protocol):
    async def score(self, request: ScoreRequest) -> StepScores:
        """Score the steps that have no score. Cancelling the task cancels the request.

        Raises PathOverflow where the problem fits the context and the path does not."""


E = TypeVar("E", bound=Engine)


class EngineProxy(Generic[E]):
    """Forwards to another engine what a subclass does not define itself."""

    def __init__(self, engine: E) -> None:
        self._engine = engine

    @property
    def suspect_lock(self) -> asyncio.Lock:
        return self._engine.suspect_lock

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    async def view(self) -> EngineView:
        return await self._engine.view()

    async def budget(self, kv_bytes: int) -> int:
        return await self._engine.budget(kv_bytes)

    async def offload(self, *, keep: bool = True, share: float = 1.0) -> int:
        return await self._engine.offload(keep=keep, share=share)

    async def restore(self, *, share: float = 1.0) -> int:
        return await self._engine.restore(share=share)

    async def rank_programs(self, keys: Sequence[str]) -> None:
        await self._engine.rank_programs(keys)

    def health(self) -> Health:
        return self._engine.health()

    async def wait_ready(self, timeout_s: float) -> None:
        await self._engine.wait_ready(timeout_s)
