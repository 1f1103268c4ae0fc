"""vLLM's scheduler with the windows of deterministic requests: their state and their KV blocks.

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

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request, RequestStatus

from flashedge.engine.vllm.inside.determinism.replay import Replay
from flashedge.engine.vllm.inside.keys import ARGS_KEY, DETERMINISTIC, REPLAY_SHAPE, SALT
from flashedge.scheduling.determinism.replay_shape import ReplayShape
from flashedge.scheduling.determinism.step_choice import StepKind


class WindowScheduler(AsyncScheduler):
    """Knows the deterministic requests, and gives their windows blocks.

    vLLM's asynchronous scheduler serves both ways: where steps follow each other, there is never
    more than one in flight.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config.get(ARGS_KEY, {})
        found = config.get(REPLAY_SHAPE)
        self.replays: dict[str, Replay] = {}
        """By the id of vLLM's request."""
        self.shape = ReplayShape(window=self.block_size)
        if found is not None:
            self.set_shape(ReplayShape.from_json(found))
        self._step = StepKind.SHARED
        self._allocate_in_vllm = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate  # the one place where requests get KV

    def set_shape(self, shape: ReplayShape) -> None:
        """From now on windows are computed in this shape. Raises ValueError where one is open, or
        where the engine can't compute it."""
        if self.replays:
            raise ValueError("the shape can't change while a deterministic request is open")
        if shape.window % self.block_size or shape.rows > self.max_num_scheduled_tokens:
            raise ValueError(
                f"a window of {shape.window} tokens has to be a multiple of a block's "
                f"{self.block_size}, and a pass of {shape.rows} rows has to fit a step of "
                f"{self.max_num_scheduled_tokens}"
            )
        self.shape = shape

    # ------------------------------------------------------------ requests arrive and leave

    def add_request(self, request: Request) -> None:
        self.begin(request)
        super().add_request(request)

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

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.replays.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)

    def _free_request_blocks(self, request: Request) -> None:
        replay = self.replays.get(request.request_id)
        if replay is not None:
            replay.lose_blocks(self.hash_block_size)
        super()._free_request_blocks(request)

    # ------------------------------------------------------------ windows and their blocks

    def find_window(self, replay: Replay) -> int:
        """The first position of the window that draws the request's next token."""
        return self.shape.find_window(replay.verified)

    def end_window(self, replay: Replay) -> int:
        return self.shape.end_window(replay.verified, self.max_model_len)

    def end_chunk(self, replay: Replay, computed: int) -> int:
        """The position behind the prompt's next chunk."""
        return self.shape.end_chunk(computed, replay.verified)

    def count_shared_tokens(self, request: Request) -> int:
        """Tokens whose KV a request without blocks would find in the cache."""
        return int(self._get_local_prefix_cache_hit(request)[1])

    @contextmanager
    def pin_prefixes(self, requests: Iterable[Request]) -> Iterator[None]:
        """Keep the windows that requests without blocks would find, while others get blocks."""
        pool = self.kv_cache_manager.block_pool
        without = [r for r in requests if r.status is not RequestStatus.RUNNING]
        found = [self._get_local_prefix_cache_hit(request)[0].blocks for request in without]
        pinned = [block for groups in found for blocks in groups for block in blocks]
        pool.touch(pinned)
        try:
            yield
        finally:
            pool.free_blocks(reversed(pinned))

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        """Share whole windows only."""
        blocks, found, *rest = super()._get_local_prefix_cache_hit(request)
        if request.request_id in self.replays and found % self.shape.window:
            found -= found % self.shape.window
            blocks = self.kv_cache_manager.truncate_computed_blocks(blocks, found)
        return blocks, found, *rest

    def _allocate(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Allocate blocks for a request. None if there are too few.

        A window gets all of its blocks, and they stay out of the prefix cache until it is verified.
        """
        replay = self.replays.get(request.request_id)
        if replay is not None:
            kwargs["delay_cache_blocks"] = True
            if self._step is StepKind.VERIFY and request.status is not RequestStatus.RUNNING:
                kwargs["num_lookahead_tokens"] = self.end_window(replay) - request.num_tokens
        return self._allocate_in_vllm(request, *args, **kwargs)

    def drop_candidates(self, request: Request) -> None:
        """The step that they would belong to has ended without them."""
        replay = self.replays.get(request.request_id)
        if replay is not None:
            replay.drop_candidates(self.hash_block_size)

    def _share_windows(self, request: Request, tokens: int) -> None:
        """Let other deterministic requests find the windows up to a position."""
        self.kv_cache_manager.cache_blocks(request, tokens)


def is_deterministic(request: Request) -> bool:
    """Whether the request asks for the same tokens, or scores, whatever runs beside it."""
    params = request.sampling_params or request.pooling_params
    return bool(read_args(params).get(DETERMINISTIC))


def read_args(params: Any) -> Mapping[str, Any]:
    """Our entry in the parameters of a request that generates or is scored."""
    of_vllm = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
    return of_vllm.get(ARGS_KEY) or {}
