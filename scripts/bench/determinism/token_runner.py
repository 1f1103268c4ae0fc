"""The real scheduler without a model: a token is a hash of the path before it.

Used where only the steps count: by the tests with random events, and to price steps on a card
(`priced_engine.py`). The runner keeps tokens as vLLM's first runner does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from flashedge.engine.vllm.engine_options import EngineOptions
from flashedge.engine.vllm.inside.determinism.runner import REJECTED, accept
from flashedge.engine.vllm.inside.determinism.windows import find_pass
from flashedge.scheduling.determinism import PassShape
from flashedge.search.tree import mix64

VOCABULARY = 50


def draw_token(path: Sequence[int], seed: int) -> int:
    """The token behind a path: the truth."""
    return mix64(hash(tuple(path)) & 0xFFFFFFFF, seed) % VOCABULARY


def make_scheduler(
    shape: PassShape,
    model: Path,
    *,
    blocks: int,
    block_tokens: int,
    sequences: int,
    max_model_len: int,
    boundaries: Mapping[str, Any] | None = None,
    card_drafts: int = 0,
    scheduler_class: Any = None,
) -> Any:
    """A scheduler without engine.

    model: a checkpoint, of which only the configuration is read. boundaries, card_drafts: see
    `EngineOptions`.
    scheduler_class: None for EdgeScheduler.
    """
    import torch
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from flashedge.engine.vllm.inside.scheduler import EdgeScheduler

    options = EngineOptions(
        name="generator",
        model=model,
        dtype="float32",
        max_model_len=max_model_len,
        kv_bytes=1 << 20,
        max_num_seqs=sequences,
        boundaries=boundaries or {},
        card_drafts=card_drafts,
    )
    config = options.build_args().create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = block_tokens
    init_none_hash(sha256)
    spec = FullAttentionSpec(
        block_size=block_tokens, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    scheduler = (scheduler_class or EdgeScheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_tokens,
        hash_block_size=block_tokens,
        log_stats=False,
    )
    scheduler.passes.windows.set_shape(shape)
    return scheduler


def build_request(name: str, prompt: Sequence[int], block_tokens: int, **params: Any) -> Any:
    """A request as the engine's core hands it to the scheduler. params: `sampling_params` and
    `pooling_params`."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    return Request(
        request_id=name,
        prompt_token_ids=list(prompt),
        block_hasher=get_request_block_hasher(block_tokens, sha256),
        **params,
    )


class Asked(Protocol):
    """What a runner knows of a request."""

    @property
    def seed(self) -> int: ...

    @property
    def deterministic(self) -> bool: ...


@dataclass(slots=True)
class RunnerState:
    """What the runner keeps of a request."""

    asked: Asked
    prompt: list[int]
    output: list[int]
    blocks: list[int]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.output]


@dataclass(frozen=True, slots=True)
class Span:
    """What a step computes of a request."""

    start: int
    end: int
    inputs: list[int]
    """Its tokens, with the guesses."""
    guesses: list[int]


class TokenRunner:
    """Stands for the model runner."""

    def __init__(self, error_rate: float, draw: Random) -> None:
        """error_rate: how often a shared step draws any token for a deterministic request."""
        self._error_rate = error_rate
        self._draw = draw
        self.asked: dict[str, Asked] = {}
        self._states: dict[str, RunnerState] = {}
        self.passes = 0

    def run(self, output: Any) -> Any:
        """Returns vLLM's ModelRunnerOutput of a step."""
        self._update_states(output)
        names = list(output.num_scheduled_tokens)
        self.passes += find_pass(output) is not None
        return self.make_output(output, names)

    def make_output(self, output: Any, names: list[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        drawn = [self._draw_tokens(output, name) for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=drawn,
        )

    def _update_states(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self._states.pop(name, None)
        for new in output.scheduled_new_reqs:
            prompt = list(new.prompt_token_ids)
            (blocks,) = new.block_ids
            self._states[new.req_id] = RunnerState(self.asked[new.req_id], prompt, [], list(blocks))
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            state = self._states[name]
            del state.output[cached.num_output_tokens[index] :]
            new_blocks = cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                state.blocks = list(new_blocks[0])
            elif new_blocks is not None:
                state.blocks += new_blocks[0]

    def _draw_tokens(self, output: Any, name: str) -> list[int]:
        state, replay_pass = self._states[name], find_pass(output)
        span = self.compute(output, name)
        if span.end < len(state.tokens):
            return []
        seed, known = state.asked.seed, len(state.tokens)
        truth = [draw_token(span.inputs[:at], seed) for at in range(known, span.end + 1)]
        (row,) = accept([truth], [span.guesses])
        drawn = [token for token in row if token != REJECTED]
        is_shared = replay_pass is None or not replay_pass.is_verify
        if is_shared and self._draw.random() < self._error_rate and state.asked.deterministic:
            drawn = [self._draw.randrange(VOCABULARY)]
        state.output += drawn
        return drawn

    def compute(self, output: Any, name: str) -> Span:
        """Stands for the forward pass of a request."""
        start, guesses = self._find_start(output, name), self._find_guesses(output, name)
        return Span(
            start=start,
            end=start + output.num_scheduled_tokens[name],
            inputs=[*self._states[name].tokens, *guesses],
            guesses=guesses,
        )

    def _find_start(self, output: Any, name: str) -> int:
        return find_start(output, name)

    def _find_guesses(self, output: Any, name: str) -> list[int]:
        return list(output.scheduled_spec_decode_tokens.get(name, ()))


def find_start(output: Any, name: str) -> int:
    """How many tokens of a scheduled request have KV already."""
    for new in output.scheduled_new_reqs:
        if new.req_id == name:
            return int(new.num_computed_tokens)
    cached = output.scheduled_cached_reqs
    return int(cached.num_computed_tokens[cached.req_ids.index(name)])
