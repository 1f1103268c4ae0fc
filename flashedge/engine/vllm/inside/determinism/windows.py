"""The windows of deterministic requests: which of their tokens are verified, and their KV blocks.

vLLM's own request holds the verified tokens and, after them, the candidates that shared steps
drew. Once a window is verified its blocks enter the prefix cache, with a salt, so that only
deterministic requests find them. So the children of a search share their verified path. A window
consists of whole blocks: its size is a multiple of theirs, and it begins at a multiple of its size.

ADR 20. Checked with vLLM 0.32.0.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.keys import DETERMINISTIC, read_args
from flashedge.scheduling.determinism import PassShape, StepKind

PAD = 0
"""The guess where a window has no candidate. It is checked like any other."""
_PASS = "flashedge_pass"
"""The attribute of a SchedulerOutput that holds its `ReplayPass`. vLLM pickles it with the object
for workers in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPass:
    rows: int
    """Rows that the pass computes, padding included."""
    guesses: dict[str, list[int]] = field(default_factory=dict)
    """By request id, the guessed tokens, which are the last rows of a request in a verify pass. The
    row before them checks the first guess. Empty in a prefill pass."""

    @property
    def is_verify(self) -> bool:
        return bool(self.guesses)

    def attach(self, output: Any) -> None:
        setattr(output, _PASS, self)


def find_pass(output: Any) -> ReplayPass | None:
    return getattr(output, _PASS, None)


@dataclass(slots=True, eq=False, kw_only=True)
class Replay:
    """A deterministic request, and what is known of its window."""

    request: Request
    hash_block_size: int
    """Tokens for each of the request's block hashes."""
    verified: int
    """How many of its tokens are verified. The prompt counts as verified."""
    is_current: bool = False
    """Whether the request's blocks hold the KV of the window, so that shared steps may go on."""
    saved: list[int] = field(default_factory=list)
    """Candidates of a request that lost its blocks."""
    may_end: bool = False
    """Whether the last candidate would end the request or its step."""
    waited: int = 0
    """Shared steps since its window became ready."""

    @property
    def candidates(self) -> Sequence[int]:
        return self.saved or self.request.all_token_ids[self.verified :]

    def take_candidates(self) -> list[int]:
        """Remove the candidates from vLLM's request, and return them."""
        request, taken = self.request, list(self.candidates)
        self.saved = []
        del request._output_token_ids[self.verified - request.num_prompt_tokens :]
        del request._all_token_ids[self.verified :]
        del request.block_hashes[self.verified // self.hash_block_size :]
        return taken

    def drop_candidates(self) -> bool:
        """Returns whether there were any."""
        dropped = self.take_candidates()
        self.may_end = False
        self.limit_computed()
        return bool(dropped)

    def limit_computed(self) -> None:
        """Count the last token as not computed: the next step computes it."""
        request = self.request
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)

    def lose_blocks(self) -> None:
        """Keep the candidates of a request that loses its blocks: they need not be drawn again."""
        self.saved = self.take_candidates() or list(self.request.spec_token_ids)
        self.is_current = self.may_end = False
        self.waited = 0

    def guess(self, end: int) -> list[int]:
        """Take the candidates as guesses, and pad them up to the window's end."""
        size = end - self.verified
        guesses = self.take_candidates()[:size]
        return guesses + [PAD] * (size - len(guesses))

    def commit(self) -> None:
        self.verified = self.request.num_tokens
        self.is_current, self.may_end, self.waited = True, False, 0


class Windows:
    """The windows of all open deterministic requests, and the shape in which they are computed."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.replays: dict[str, Replay] = {}
        self.shape = PassShape(window=scheduler.block_size)
        self.step = StepKind.SHARED
        """The kind of the step that is scheduled or computed."""

    def set_shape(self, shape: PassShape) -> None:
        """Set the shape of all passes. Raises ValueError for a shape that does not fit the engine,
        or while a deterministic request is open."""
        block, most = self._scheduler.block_size, self._scheduler.max_num_scheduled_tokens
        if self.replays:
            raise ValueError("the shape can't change while a deterministic request is open")
        if shape.window % block or shape.rows > most:
            raise ValueError(
                f"a window of {shape.window} tokens has to be a multiple of a block's {block}, and "
                f"a pass of {shape.rows} rows has to fit a step of {most}"
            )
        self.shape = shape

    def begin(self, request: Request) -> None:
        """Give a request that asks to be deterministic its first window. Ignores any other."""
        params = request.sampling_params or request.pooling_params
        if not read_args(params).get(DETERMINISTIC):
            return
        request.cache_salt = self.make_salt()
        request.block_hashes.clear()
        request.update_block_hashes()
        self.replays[request.request_id] = Replay(
            request=request,
            hash_block_size=self._scheduler.hash_block_size,
            verified=request.num_tokens,
        )

    def make_salt(self) -> str:
        """Return the salt of a request's blocks: only requests of this shape share them."""
        shape = self.shape
        return f"flashedge-verified-{shape.window}-{shape.group}-{shape.prefill_windows}"

    def end_window(self, replay: Replay) -> int:
        return self.shape.end_window(replay.verified, self._scheduler.max_model_len)

    def is_ready(self, replay: Replay) -> bool:
        """Whether the request has its window's KV and all candidates that it can have."""
        is_full = replay.request.num_tokens >= self.end_window(replay)
        return replay.is_current and (replay.may_end or is_full)

    @contextmanager
    def pin_prefixes(self, requests: Iterable[Request]) -> Iterator[None]:
        """Let no block of these requests' cached windows be evicted while others get blocks."""
        find = self._scheduler._get_local_prefix_cache_hit
        pool = self._scheduler.kv_cache_manager.block_pool
        without = [r for r in requests if r.status is not RequestStatus.RUNNING]
        found = [find(request)[0].blocks for request in without]
        pinned = [block for groups in found for blocks in groups for block in blocks]
        pool.touch(pinned)
        try:
            yield
        finally:
            pool.free_blocks(reversed(pinned))

    def cut_prefix(self, request: Request, hit: Any) -> Any:
        """Cut a deterministic request's `hit`, vLLM's (blocks, tokens, …), to whole windows."""
        blocks, found, *rest = hit
        if request.request_id in self.replays and found % self.shape.window:
            found -= found % self.shape.window
            blocks = self._scheduler.kv_cache_manager.truncate_computed_blocks(blocks, found)
        return blocks, found, *rest

    def choose_allocation(self, request: Request) -> dict[str, Any]:
        """Return more arguments for `allocate_slots`: a window gets all of its blocks, which stay
        out of the prefix cache until it is verified."""
        replay = self.replays.get(request.request_id)
        if replay is None:
            return {}
        chosen: dict[str, Any] = {"delay_cache_blocks": True}
        if self.step is StepKind.VERIFY and request.status is not RequestStatus.RUNNING:
            chosen["num_lookahead_tokens"] = self.end_window(replay) - request.num_tokens
        return chosen

    def share(self, request: Request, tokens: int) -> None:
        """Put the blocks of the request's first `tokens` tokens into the prefix cache."""
        self._scheduler.kv_cache_manager.cache_blocks(request, tokens)
