"""The windows of deterministic requests: their state and their KV blocks.

Their blocks carry a salt, so that no other request finds them, and they enter the prefix cache once
their window is verified. A deterministic request with the same tokens finds whole windows there,
whether they were a prompt or were drawn. So the children of a search share their verified path.

The blocks of a window are those that it would have in any order of events: the window begins at a
multiple of its size, and the size is a multiple of a block's.

ADR 20. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.determinism.replay import Replay
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC, REPLAY_SHAPE, SALT
from flashedge.scheduling.determinism.replay_shape import ReplayShape
from flashedge.scheduling.determinism.step_choice import StepKind


class Windows:
    """Knows the deterministic requests of a scheduler, and what blocks their windows get."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.replays: dict[str, Replay] = {}
        """By the id of vLLM's request."""
        self.shape = ReplayShape(window=scheduler.block_size)
        config = scheduler.vllm_config.additional_config.get(ARGS_KEY, {})
        if (found := config.get(REPLAY_SHAPE)) is not None:
            self.set_shape(ReplayShape.from_json(found))
        self.step = StepKind.SHARED
        """Of the step that is scheduled now, or was last."""

    def set_shape(self, shape: ReplayShape) -> None:
        """From now on windows are computed in this shape. Raises ValueError where one is open, or
        where the engine can't compute it."""
        block, most = self._scheduler.block_size, self._scheduler.max_num_scheduled_tokens
        if self.replays:
            raise ValueError("the shape can't change while a deterministic request is open")
        if shape.window % block or shape.rows > most:
            raise ValueError(
                f"a window of {shape.window} tokens has to be a multiple of a block's {block}, and "
                f"a pass of {shape.rows} rows has to fit a step of {most}"
            )
        self.shape = shape

    # ------------------------------------------------------------ requests arrive and leave

    def begin(self, request: Request) -> None:
        """Called with each new request."""
        if not is_deterministic(request):
            return
        request.cache_salt = self.make_salt()
        request.block_hashes.clear()
        request.update_block_hashes()
        replay = Replay(request=request, verified=request.num_tokens)
        self.replays[request.request_id] = replay

    def make_salt(self) -> str | None:
        """Deterministic requests share blocks with each other alone: their KV was computed in
        windows of this shape."""
        shape = self.shape
        return f"{SALT}-{shape.window}-{shape.group}-{shape.prefill_windows}"

    def end(self, request: Request) -> None:
        self.replays.pop(request.request_id, None)

    def lose_blocks(self, request: Request) -> None:
        """Called before a request's blocks are freed."""
        replay = self.replays.get(request.request_id)
        if replay is not None:
            replay.lose_blocks(self._scheduler.hash_block_size)

    def drop_candidates(self, request: Request) -> None:
        """The step that they would belong to has ended without them."""
        replay = self.replays.get(request.request_id)
        if replay is not None:
            replay.drop_candidates(self._scheduler.hash_block_size)

    # ------------------------------------------------------------ windows and their blocks

    def find_window(self, replay: Replay) -> int:
        """The first position of the window that draws the request's next token."""
        return self.shape.find_window(replay.verified)

    def end_window(self, replay: Replay) -> int:
        return self.shape.end_window(replay.verified, self._scheduler.max_model_len)

    def end_chunk(self, replay: Replay, computed: int) -> int:
        """The position behind the prompt's next chunk."""
        return self.shape.end_chunk(computed, replay.verified)

    def count_shared_tokens(self, request: Request) -> int:
        """Tokens whose KV a request without blocks would find in the cache."""
        return int(self._scheduler._get_local_prefix_cache_hit(request)[1])

    @contextmanager
    def pin_prefixes(self, requests: Iterable[Request]) -> Iterator[None]:
        """Keep the windows that requests without blocks would find, while others get blocks."""
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
        """What a request may take of the prefix that vLLM found for it: whole windows only."""
        blocks, found, *rest = hit
        if request.request_id in self.replays and found % self.shape.window:
            found -= found % self.shape.window
            blocks = self._scheduler.kv_cache_manager.truncate_computed_blocks(blocks, found)
        return blocks, found, *rest

    def choose_allocation(self, request: Request) -> dict[str, Any]:
        """Further arguments of vLLM's `allocate_slots`. A window gets all of its blocks, and they
        stay out of the prefix cache until it is verified."""
        replay = self.replays.get(request.request_id)
        if replay is None:
            return {}
        chosen: dict[str, Any] = {"delay_cache_blocks": True}
        if self.step is StepKind.VERIFY and request.status is not RequestStatus.RUNNING:
            chosen["num_lookahead_tokens"] = self.end_window(replay) - request.num_tokens
        return chosen

    def share(self, request: Request, tokens: int) -> None:
        """Let other deterministic requests find the windows up to a position."""
        self._scheduler.kv_cache_manager.cache_blocks(request, tokens)


def is_deterministic(request: Request) -> bool:
    """Whether the request asks for the same tokens, or scores, whatever runs beside it."""
    params = request.sampling_params or request.pooling_params
    return bool(read_args(params).get(DETERMINISTIC))


def read_args(params: Any) -> Mapping[str, Any]:
    """Our entry in the parameters of a request that generates or is scored."""
    of_vllm = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
    return of_vllm.get(ARGS_KEY) or {}
